//go:build linux && cgo

package main

// #include <stdlib.h>
// #include <string.h>
// #include "include/transfer_engine_c.h"
// #include "table.h"
import "C"

import (
	"context"
	"encoding/json"
	"net"
	"os"
	"strconv"
	"time"
	"unsafe"

	"github.com/tideway-io/tideway"
	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/segment"
)

// The functions that gate.c calls. Each keeps to one shape: find the engine, do
// the work in Go, keep the error's text for tideway_last_error, return its number.

// fail keeps the text of err for this thread.
func fail(err error) {
	if err == nil {
		return
	}
	text := err.Error()
	C.tw_set_error((*C.char)(unsafe.Pointer(unsafe.StringData(text))), C.size_t(len(text)))
}

// with runs f with the engine of a handle; a panic is an error as well.
func with(handle C.uintptr_t, f func(*engine) error) (err error) {
	defer func() { fail(err) }()
	defer guard(&err)
	e, err := lib.engine(uint64(handle))
	if err != nil {
		return err
	}
	return f(e)
}

// withBatch is with for a batch of the engine.
func withBatch(handle C.uintptr_t, id C.uint64_t, f func(*engine, *batch) error) error {
	return with(handle, func(e *engine) error {
		b, err := lib.batches.find(e, uint64(id))
		if err != nil {
			return err
		}
		return f(e, b)
	})
}

// text returns a copy of a C string that must be there.
func text(op, what string, s *C.char) (string, error) {
	if s == nil {
		return "", null(op, what)
	}
	return C.GoString(s), nil
}

// asJSON returns v as C text, to be freed by the caller.
func asJSON(v any) (*C.char, error) {
	out, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	return C.CString(string(out)), nil
}

// put writes s and a zero to the n bytes at buf, cut if it must be.
func put(op string, buf *C.char, n C.size_t, s string) error {
	if buf == nil || n == 0 {
		return null(op, "the place for the text")
	}
	out := unsafe.Slice((*byte)(unsafe.Pointer(buf)), n)
	out[copy(out[:n-1], s)] = 0
	return nil
}

//export twCreate
func twCreate(conn, name *C.char, discover C.int) C.uintptr_t {
	var handle uint64
	err := func() (err error) {
		defer guard(&err)
		where, err := text("create engine", "metadata_conn", conn)
		if err != nil {
			return err
		}
		own, err := text("create engine", "local_server_name", name)
		if err != nil {
			return err
		}
		e, err := create(where, func(env *environment) (tideway.Config, error) { return configure(*env, where, own, os.Getenv), nil })
		if err == nil {
			handle = lib.add(e)
		}
		return err
	}()
	fail(err)
	return C.uintptr_t(handle)
}

//export twDestroy
func twDestroy(handle C.uintptr_t) {
	if e, ok := lib.remove(uint64(handle)); ok {
		e.destroy()
	}
}

//export twUsable
func twUsable(handle C.uintptr_t) C.int {
	return C.int(resultOf(with(handle, func(*engine) error { return nil })))
}

//export twAddr
func twAddr(handle C.uintptr_t, buf *C.char, n C.size_t) C.int {
	return C.int(resultOf(with(handle, func(e *engine) error { return put("get address", buf, n, e.tw.Addr()) })))
}

//export twPort
func twPort(handle C.uintptr_t) C.int {
	port := 0
	err := with(handle, func(e *engine) error {
		_, p, err := net.SplitHostPort(e.tw.Addr())
		if err == nil {
			port, err = strconv.Atoi(p)
		}
		return err
	})
	if err != nil {
		return C.int(resultOf(err))
	}
	return C.int(port)
}

//export twName
func twName(handle C.uintptr_t) *C.char {
	var name *C.char
	_ = with(handle, func(e *engine) error { name = C.CString(e.tw.Name()); return nil })
	return name
}

//export twOpen
func twOpen(handle C.uintptr_t, name *C.char, fresh C.int) C.int32_t {
	id := int32(-1)
	err := with(handle, func(e *engine) error {
		s, err := text("open segment", "segment_name", name)
		if err == nil {
			id, err = e.open(s, fresh != 0)
		}
		return err
	})
	if err != nil {
		return -1
	}
	return C.int32_t(id)
}

//export twWarm
func twWarm(handle C.uintptr_t, name *C.char) C.int {
	return C.int(resultOf(with(handle, func(e *engine) error {
		if name == nil || *name == 0 {
			return nil
		}
		ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
		defer cancel()
		return e.tw.Warm(ctx, C.GoString(name))
	})))
}

//export twForget
func twForget(handle C.uintptr_t, name *C.char) C.int {
	err := with(handle, func(e *engine) error {
		s, err := text("remove segment", "segment_name", name)
		if err != nil {
			return err
		}
		return e.forget(s)
	})
	return failed(err)
}

// failed is -1 for any error, 0 for none.
func failed(err error) C.int {
	if err != nil {
		return -1
	}
	return 0
}

//export twSync
func twSync(handle C.uintptr_t) C.int {
	return C.int(resultOf(with(handle, func(e *engine) error { e.sync(); return nil })))
}

//export twRegister
func twRegister(handle C.uintptr_t, addr unsafe.Pointer, n C.size_t, location *C.char, remote C.int) C.int {
	return C.int(resultOf(with(handle, func(e *engine) error {
		access := segment.LocalOnly
		if remote != 0 {
			access = segment.ReadWrite
		}
		return e.register(entry{uint64(uintptr(addr)), uint64(n)}, anywhere(location), access)
	})))
}

// anywhere is the location's text, "*" for NULL.
func anywhere(location *C.char) string {
	if location == nil {
		return "*"
	}
	return C.GoString(location)
}

//export twUnregister
func twUnregister(handle C.uintptr_t, addr unsafe.Pointer) C.int {
	return C.int(resultOf(with(handle, func(e *engine) error { return e.unregister(uint64(uintptr(addr))) })))
}

//export twRegisterAll
func twRegisterAll(handle C.uintptr_t, list *C.buffer_entry_t, n C.size_t, location *C.char) C.int {
	return C.int(resultOf(with(handle, func(e *engine) error {
		if list == nil && n > 0 {
			return null("register memory", "buffer_list")
		}
		var all []entry
		for _, x := range unsafe.Slice(list, n) {
			all = append(all, entry{uint64(uintptr(x.addr)), uint64(x.length)})
		}
		return e.registerAll(all, anywhere(location), segment.ReadWrite)
	})))
}

//export twUnregisterAll
func twUnregisterAll(handle C.uintptr_t, addrs *unsafe.Pointer, n C.size_t) C.int {
	return C.int(resultOf(with(handle, func(e *engine) error {
		if addrs == nil && n > 0 {
			return null("unregister memory", "addr_list")
		}
		var first error
		for _, addr := range unsafe.Slice(addrs, n) {
			if err := e.unregister(uint64(uintptr(addr))); err != nil && first == nil {
				first = err
			}
		}
		return first
	})))
}

//export twAllocate
func twAllocate(handle C.uintptr_t, n C.size_t) C.uint64_t {
	id := ^uint64(0)
	_ = with(handle, func(e *engine) error {
		b := &batch{e: e, capacity: int(min(n, maxTasks+1))}
		err := lib.batches.add(b)
		if err == nil {
			id = b.id
		}
		return err
	})
	return C.uint64_t(id)
}

//export twFree
func twFree(handle C.uintptr_t, id C.uint64_t) C.int {
	return C.int(statusOf(withBatch(handle, id, func(_ *engine, b *batch) error { return b.release() })))
}

//export twSubmit
func twSubmit(handle C.uintptr_t, id C.uint64_t, entries *C.struct_transfer_request, n C.size_t) C.int {
	return C.int(statusOf(withBatch(handle, id, func(e *engine, b *batch) error {
		reqs, err := e.requests(entries, n)
		if err != nil {
			return err
		}
		return b.submit(reqs, nil)
	})))
}

//export twSubmitNotify
func twSubmitNotify(handle C.uintptr_t, id C.uint64_t, entries *C.struct_transfer_request, n C.size_t, name, msg *C.char) C.int {
	return C.int(statusOf(withBatch(handle, id, func(e *engine, b *batch) error {
		if n == 0 {
			return errs.New(errs.Invalid, "submit", "no request whose peer could be notified")
		}
		reqs, err := e.requests(entries, n)
		if err != nil {
			return err
		}
		to, err := e.segment(int64(entries.target_id))
		if err != nil {
			return err
		}
		message, err := notification(name, msg)
		if err != nil {
			return err
		}
		return b.submit(reqs, &note{to, message})
	})))
}

// notification makes a message of C's strings.
func notification(name, msg *C.char) (tideway.Notification, error) {
	n, err := text("notify", "name", name)
	if err != nil {
		return tideway.Notification{}, err
	}
	m, err := text("notify", "msg", msg)
	return tideway.Notification{Name: n, Body: []byte(m)}, err
}

//export twWake
func twWake(id C.uint64_t) {
	if b := lib.batches.any(uint64(id)); b != nil {
		b.wake()
	}
}

//export twWait
func twWait(handle C.uintptr_t, id C.uint64_t, timeout C.int64_t) C.int {
	err := withBatch(handle, id, func(_ *engine, b *batch) error { return b.wait(time.Duration(timeout)) })
	if errs.Of(err) == errs.Deadline {
		return C.STATUS_TIMEOUT
	}
	return C.int(statusOf(err))
}

//export twCancel
func twCancel(handle C.uintptr_t, id C.uint64_t) C.int {
	return C.int(statusOf(withBatch(handle, id, func(_ *engine, b *batch) error { b.cancel(); return nil })))
}

//export twTaskError
func twTaskError(handle C.uintptr_t, id C.uint64_t, task C.size_t) *C.char {
	var out *C.char
	_ = withBatch(handle, id, func(_ *engine, b *batch) (err error) {
		if why := b.failure(int(task)); why != nil {
			out, err = asJSON(describe(why))
		}
		return err
	})
	return out
}
