//go:build linux && cgo

package main

// #include <stdlib.h>
// #include "include/tideway.h"
// #include "table.h"
import "C"

import (
	"net"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"github.com/tideway-io/tideway"
	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/segment"
)

// TENT's functions that gate_tent.c calls, in the shape of exports.go. They are
// the same engines, batches and registrations by other names.

//export twTentNull
func twTentNull(op, what *C.char) C.int {
	fail(null(C.GoString(op), C.GoString(what)))
	return -1
}

//export twTentName
func twTentName(handle C.uintptr_t, buf *C.char, n C.size_t) C.int {
	return failed(with(handle, func(e *engine) error { return put("get segment name", buf, n, e.tw.Name()) }))
}

//export twTentAddr
func twTentAddr(handle C.uintptr_t, buf *C.char, n C.size_t, port *C.uint16_t) C.int {
	return failed(with(handle, func(e *engine) error {
		if port == nil {
			return null("get address", "port")
		}
		host, p, err := net.SplitHostPort(e.tw.Addr())
		if err != nil {
			return err
		}
		number, err := strconv.ParseUint(p, 10, 16)
		if err != nil {
			return err
		}
		*port = C.uint16_t(number)
		return put("get address", buf, n, host)
	}))
}

//export twTentOpen
func twTentOpen(handle C.uintptr_t, out *C.tent_segment_id_t, name *C.char) C.int {
	return failed(with(handle, func(e *engine) error {
		if out == nil {
			return null("open segment", "handle")
		}
		who, err := text("open segment", "segment_name", name)
		if err != nil {
			return err
		}
		id := int32(0)
		if strings.TrimLeft(who, "/") != "" {
			id, err = e.open(who, false)
		}
		if err == nil {
			*out = C.tent_segment_id_t(id)
		}
		return err
	}))
}

//export twTentClose
func twTentClose(handle C.uintptr_t, id C.tent_segment_id_t) C.int {
	return failed(with(handle, func(e *engine) error { return e.close(uint64(id)) }))
}

// tentSegment returns the segment of an id of TENT's, which has 64 bits.
func (e *engine) tentSegment(id C.tent_segment_id_t) (*tideway.Segment, error) {
	return e.segment(int64(min(uint64(id), 1<<62)))
}

//export twTentInfo
func twTentInfo(handle C.uintptr_t, id C.tent_segment_id_t, out *C.tent_segment_info_t) C.int {
	return failed(with(handle, func(e *engine) error {
		if out == nil {
			return null("get segment info", "info")
		}
		s, err := e.tentSegment(id)
		if err != nil {
			return err
		}
		kind, list := C.int(C.TYPE_FILE), []offered{}
		all := buffersOf(s)
		for _, b := range all {
			if b.Location != "file" {
				kind = C.TYPE_MEMORY
			}
		}
		for _, b := range all {
			if (b.Location == "file") == (kind == C.TYPE_FILE) {
				list = append(list, b)
			}
		}
		if len(all) == 0 {
			kind = C.TYPE_MEMORY
		}
		out._type, out.num_buffers, out.buffers = kind, C.int(len(list)), nil
		if len(list) == 0 {
			return nil
		}
		out.buffers = (*C.struct_tent_buffer_info)(C.calloc(C.size_t(len(list)), C.sizeof_struct_tent_buffer_info))
		infos := unsafe.Slice(out.buffers, len(list)) // made for so many
		for i, b := range list {
			infos[i].base, infos[i].length = C.uint64_t(b.Addr), C.uint64_t(b.Length)
			fill(infos[i].location[:], string(b.Location))
		}
		return nil
	}))
}

// fill writes s and a zero to a place of a fixed length, cut if it must be.
func fill(to []C.char, s string) {
	n := min(len(s), len(to)-1)
	for i := range n {
		to[i] = C.char(s[i])
	}
	to[n] = 0
}

//export twTentAlloc
func twTentAlloc(handle C.uintptr_t, out *unsafe.Pointer, size C.size_t, location *C.char, transport C.int) C.int {
	return failed(with(handle, func(e *engine) error {
		if out == nil {
			return null("allocate memory", "addr")
		}
		if _, err := transportOf("allocate memory", transport); err != nil {
			return err
		}
		if err := hostMemory(anywhere(location)); err != nil {
			return err
		}
		p, err := e.memory.allocate(uint64(size))
		if err == nil {
			*out = p
		}
		return err
	}))
}

// hostMemory refuses the locations of devices.
func hostMemory(location string) error {
	kind, _, _ := strings.Cut(location, ":")
	if kind == "" || kind == "*" || kind == "cpu" {
		return nil
	}
	return errs.New(errs.Unsupported, "allocate memory", "location %q; this library allocates host memory only (cpu, cpu:N, *)", location)
}

//export twTentRelease
func twTentRelease(handle C.uintptr_t, addr unsafe.Pointer) C.int {
	return failed(with(handle, func(e *engine) error { return e.memory.free(uint64(uintptr(addr))) }))
}

//export twTentRegister
func twTentRegister(handle C.uintptr_t, addrs *unsafe.Pointer, sizes *C.size_t, n C.size_t, location *C.char, permission, transport C.int) C.int {
	return failed(with(handle, func(e *engine) error {
		if n > 0 && (addrs == nil || sizes == nil) {
			return null("register memory", "addrs or sizes")
		}
		if n > maxTasks {
			return errs.New(errs.Invalid, "register memory", "%d ranges, limit %d", n, maxTasks)
		}
		access, ok := map[C.int]segment.Access{
			C.PERM_LOCAL_READ_WRITE: segment.LocalOnly, C.PERM_GLOBAL_READ_ONLY: segment.RemoteRead, C.PERM_GLOBAL_READ_WRITE: segment.ReadWrite,
		}[permission]
		if !ok {
			return errs.New(errs.Invalid, "register memory", "permission %d, want 0 to 2", permission)
		}
		if _, err := transportOf("register memory", transport); err != nil {
			return err
		}
		list := make([]entry, n)
		for i := range list { // C has n of each
			list[i] = entry{uint64(uintptr(unsafe.Slice(addrs, n)[i])), uint64(unsafe.Slice(sizes, n)[i])}
		}
		return e.registerAll(list, anywhere(location), access)
	}))
}

//export twTentUnregister
func twTentUnregister(handle C.uintptr_t, addrs *unsafe.Pointer, sizes *C.size_t, n C.size_t) C.int {
	return failed(with(handle, func(e *engine) error {
		if n > 0 && addrs == nil {
			return null("unregister memory", "addrs")
		}
		var first error
		for i, addr := range unsafe.Slice(addrs, n) { // C has n of each for the length of the call
			size := uint64(0)
			if sizes != nil {
				size = uint64(unsafe.Slice(sizes, n)[i])
			}
			if err := e.unregisterSized(uint64(uintptr(addr)), size); err != nil && first == nil {
				first = err
			}
		}
		return first
	}))
}

// unregisterSized is unregister where no registration is no failure, and one of
// another size is.
func (e *engine) unregisterSized(addr, size uint64) error {
	e.memory.RLock()
	i, known := e.memory.place(addr)
	length := uint64(0)
	if known {
		length = e.memory.regions[i].length
	}
	e.memory.RUnlock()
	switch {
	case !known:
		return nil
	case size != 0 && size != length:
		return errs.New(errs.Invalid, "unregister memory", "%d bytes at %#x, where %d are registered; 0 stands for all", size, addr, length)
	}
	return e.unregister(addr)
}

//export twTentFree
func twTentFree(handle C.uintptr_t, id C.uint64_t) C.int {
	return failed(withBatch(handle, id, func(_ *engine, b *batch) error { b.releaseLater(); return nil }))
}

//export twTentCancel
func twTentCancel(handle C.uintptr_t, id C.uint64_t, task C.size_t) C.int {
	return failed(withBatch(handle, id, func(_ *engine, b *batch) error { return b.cancelTask(uint64(task)) }))
}

//export twTentSubmit
func twTentSubmit(handle C.uintptr_t, id C.uint64_t, entries *C.tent_request_t, n C.size_t, name, message *C.char, o *C.tideway_options_t) C.int {
	return failed(withBatch(handle, id, func(e *engine, b *batch) error {
		reqs, err := e.tentRequests(entries, n, o)
		if err != nil || name == nil {
			if err == nil {
				err = b.submit(reqs, nil)
			}
			return err
		}
		if n == 0 {
			return errs.New(errs.Invalid, "submit", "no request whose peer could be notified")
		}
		to, err := e.tentSegment(entries.target_id)
		if err != nil {
			return err
		}
		m, err := notification(name, message)
		if err != nil {
			return err
		}
		return b.submit(reqs, &note{to, m})
	}))
}

// tentRequests makes TENT's requests Go's.
func (e *engine) tentRequests(entries *C.tent_request_t, n C.size_t, o *C.tideway_options_t) ([]tideway.Request, error) {
	if entries == nil && n > 0 {
		return nil, null("submit", "entries")
	}
	if n > maxTasks {
		return nil, errs.New(errs.Overloaded, "submit", "%d requests, limit %d", n, maxTasks)
	}
	all, err := options(o)
	if err != nil {
		return nil, err
	}
	reqs := make([]tideway.Request, n)
	for i, x := range unsafe.Slice(entries, n) { // C keeps n of them for the length of the call
		plain := C.struct_transfer_request{opcode: x.opcode, source: x.source, target_id: C.segment_id_t(min(x.target_id, 1<<31-1)), target_offset: x.target_offset, length: x.length}
		r, err := e.request(&plain)
		if err == nil {
			r.Transport, err = transportOf("submit", x.transport_hint)
		}
		if err == nil {
			r.Priority, err = priorityOf(x.priority, all.Priority)
		}
		if err != nil {
			return nil, err
		}
		if !all.Deadline.IsZero() {
			r.Deadline = all.Deadline
		}
		r.Tenant, r.Intent = all.Tenant, all.Intent
		reqs[i] = r
	}
	return reqs, nil
}

// options returns what holds for all requests of a call.
func options(o *C.tideway_options_t) (r tideway.Request, err error) {
	switch {
	case o == nil:
		return r, nil
	case o.size < C.sizeof_struct_tideway_options:
		return r, errs.New(errs.Invalid, "submit", "options of %d bytes, want sizeof(struct tideway_options), %d", o.size, C.sizeof_struct_tideway_options)
	case o.urgency < -1 || o.urgency > 1:
		return r, errs.New(errs.Invalid, "submit", "urgency %d, want -1 to 1", o.urgency)
	case o.timeout_ns < 0:
		return r, errs.New(errs.Invalid, "submit", "timeout_ns %d, want 0 for none, or more", o.timeout_ns)
	}
	r.Priority = tideway.Priority(o.urgency)
	if o.timeout_ns > 0 {
		r.Deadline = time.Now().Add(time.Duration(o.timeout_ns))
	}
	if o.tenant != nil {
		r.Tenant = C.GoString(o.tenant)
	}
	if o.intent != nil {
		r.Intent = C.GoString(o.intent)
	}
	return r, nil
}

// priorityOf makes TENT's priorities ours: what programs leave zero, HIGH, is
// normal, and the other two are behind it.
func priorityOf(p C.int, urgency tideway.Priority) (tideway.Priority, error) {
	switch {
	case p < C.PRIO_HIGH || p > C.PRIO_LOW:
		return 0, errs.New(errs.Invalid, "submit", "priority %d, want 0 (high) to 2 (low); was the request zeroed?", p)
	case urgency != tideway.Normal:
		return urgency, nil
	case p == C.PRIO_HIGH:
		return tideway.Normal, nil
	}
	return tideway.Bulk, nil
}

// transportOf returns the name of one of TENT's transports, "" for any.
func transportOf(op string, t C.int) (string, error) {
	switch t {
	case C.TRANSPORT_UNSPEC:
		return "", nil
	case C.TRANSPORT_SHM:
		return "shm", nil
	case C.TRANSPORT_TCP:
		return "tcp", nil
	}
	return "", errs.New(errs.Unsupported, op, "transport %d; this library has UNSPEC (0), SHM (3) and TCP (7)", t)
}

//export twTentReceive
func twTentReceive(handle C.uintptr_t, out *C.tent_notifi_info) C.int {
	return failed(with(handle, func(e *engine) error {
		if out == nil {
			return null("receive notifications", "info")
		}
		got := e.received()
		out.num_records, out.records = C.int(len(got)), nil
		if len(got) == 0 {
			return nil
		}
		out.records = (*C.struct_tent_notifi_record)(C.calloc(C.size_t(len(got)), C.sizeof_struct_tent_notifi_record))
		records := unsafe.Slice(out.records, len(got)) // made for so many
		for i, n := range got {
			records[i].handle = C.tent_segment_id_t(e.known(n.From))
			fill(records[i].name[:], n.Name)
			fill(records[i].msg[:], string(n.Body))
		}
		return nil
	}))
}

//export twTentLoads
func twTentLoads(handle C.uintptr_t, stats *C.tent_nic_load_stat_t, count *C.size_t) C.int {
	return failed(with(handle, func(e *engine) error {
		if count == nil || stats == nil && *count > 0 {
			return null("get load", "stats or count")
		}
		loads := e.loads()
		for i, l := range loads[:min(len(loads), int(min(*count, 1<<20)))] {
			to := &unsafe.Slice(stats, *count)[i] // C has room for *count
			fill(to.device_name[:], l.device)
			to.inflight_bytes, to.ewma_bandwidth_bps = C.uint64_t(l.inFlight), C.double(l.rate)
		}
		*count = C.size_t(len(loads))
		return nil
	}))
}
