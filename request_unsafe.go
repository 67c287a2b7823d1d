package tideway

import (
	"unsafe"

	"github.com/tideway-io/tideway/internal/engine"
)

// The engine's form of a request has the same fields in the same order, with the
// facade's wrappers around two of them taken off.
const (
	// Sound: only sizes and places are asked for. Nothing compiles where they differ.
	_ = -(unsafe.Sizeof(Request{}) ^ unsafe.Sizeof(engine.Request{}))
	_ = -(unsafe.Offsetof(Request{}.Op) ^ unsafe.Offsetof(engine.Request{}.Op) | unsafe.Offsetof(Request{}.Local) ^ unsafe.Offsetof(engine.Request{}.Local))
	_ = -(unsafe.Offsetof(Request{}.Remote) ^ unsafe.Offsetof(engine.Request{}.Remote) | unsafe.Offsetof(Request{}.Priority) ^ unsafe.Offsetof(engine.Request{}.Priority))
	_ = -(unsafe.Offsetof(Request{}.Deadline) ^ unsafe.Offsetof(engine.Request{}.Deadline) | unsafe.Offsetof(Request{}.Intent) ^ unsafe.Offsetof(engine.Request{}.Intent))
	_ = -(unsafe.Offsetof(Request{}.Tenant) ^ unsafe.Offsetof(engine.Request{}.Tenant) | unsafe.Offsetof(Request{}.Transport) ^ unsafe.Offsetof(engine.Request{}.Transport))
)

// inner returns reqs in the engine's form, without copying: at 170 bytes each the
// copy was a sixth of the cost of a small request. The engine only reads them,
// and not after the call.
func inner(reqs []Request) []engine.Request {
	// Sound: both types have the same size and their fields lie at the same places
	// (above). Those of one type on both sides are the same to the compiler and to
	// the garbage collector; Range and Remote are structs whose only field is the
	// engine's type. What is returned keeps the array alive.
	return unsafe.Slice((*engine.Request)(unsafe.Pointer(unsafe.SliceData(reqs))), len(reqs))
}
