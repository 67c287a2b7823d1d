//go:build linux && cgo

package main

// #include <stdlib.h>
// #include "include/transfer_engine_c.h"
import "C"

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
	"unsafe"

	"github.com/tideway-io/tideway"
	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/topology"
)

// requests makes C's requests Go's. What is wrong with one is an error of all.
func (e *engine) requests(entries *C.struct_transfer_request, n C.size_t) ([]tideway.Request, error) {
	if entries == nil && n > 0 {
		return nil, null("submit", "entries")
	}
	if n > maxTasks {
		return nil, errs.New(errs.Overloaded, "submit", "%d requests, limit %d", n, maxTasks)
	}
	reqs := make([]tideway.Request, n)
	// C keeps n requests at entries for the length of the call.
	for i, x := range unsafe.Slice(entries, n) {
		r, err := e.request(&x)
		if err != nil {
			return nil, fmt.Errorf("request %d: %w", i, err)
		}
		reqs[i] = r
	}
	return reqs, nil
}

func (e *engine) request(x *C.struct_transfer_request) (tideway.Request, error) {
	s, err := e.segment(int64(x.target_id))
	if err != nil {
		return tideway.Request{}, err
	}
	local, err := e.local(uint64(uintptr(x.source)), uint64(x.length))
	if err != nil {
		return tideway.Request{}, err
	}
	op := tideway.Read
	switch x.opcode {
	case C.OPCODE_READ:
	case C.OPCODE_WRITE:
		op = tideway.Write
	default:
		return tideway.Request{}, errs.New(errs.Invalid, "submit", "opcode %d; OPCODE_READ is 0, OPCODE_WRITE is 1", x.opcode)
	}
	r := tideway.Request{Op: op, Local: local, Remote: s.At(uint64(x.target_offset))}
	if e.env.sliceTimeout > 0 {
		r.Deadline = time.Now().Add(e.env.sliceTimeout)
	}
	return r, nil
}

// maxReceived bounds the messages that one call takes.
const maxReceived = 1 << 16

//export twReceive
func twReceive(handle C.uintptr_t, size *C.int) *C.notify_msg_t {
	var list *C.notify_msg_t
	_ = with(handle, func(e *engine) error {
		if size == nil {
			return null("get notifications", "size")
		}
		got := e.received()
		*size = C.int(len(got))
		if len(got) == 0 {
			return nil
		}
		list = (*C.notify_msg_t)(C.calloc(C.size_t(len(got)), C.sizeof_notify_msg_t))
		for i, n := range got { // list was made for so many
			out := &unsafe.Slice(list, len(got))[i]
			out.name, out.msg = C.CString(n.Name), C.CString(string(n.Body))
		}
		return nil
	})
	return list
}

// received takes all messages that are there.
func (e *engine) received() []tideway.Notification {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	var got []tideway.Notification
	for len(got) < maxReceived {
		n, err := e.tw.Receive(ctx)
		if err != nil {
			return got
		}
		got = append(got, n)
	}
	return got
}

//export twNotifyID
func twNotifyID(handle C.uintptr_t, id C.uint64_t, name, msg *C.char) C.int {
	return C.int(resultOf(with(handle, func(e *engine) error {
		s, err := e.segment(int64(id))
		if err != nil {
			return &errs.Error{Op: "notify", Reason: errs.NotFound, Err: err}
		}
		return e.notify(s, name, msg)
	})))
}

//export twNotify
func twNotify(handle C.uintptr_t, segment, name, msg *C.char) C.int {
	return C.int(resultOf(with(handle, func(e *engine) error {
		who, err := text("notify", "segment_name", segment)
		if err != nil {
			return err
		}
		id, err := e.open(who, false)
		if err != nil {
			return err
		}
		s, err := e.segment(int64(id))
		if err != nil {
			return err
		}
		return e.notify(s, name, msg)
	})))
}

func (e *engine) notify(s *tideway.Segment, name, msg *C.char) error {
	n, err := notification(name, msg)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	return e.tw.Notify(ctx, s, n)
}

//export twProbe
func twProbe(handle C.uintptr_t, name *C.char, out *C.int64_t) C.int {
	return C.int(resultOf(with(handle, func(e *engine) error {
		who, err := text("probe", "segment_name", name)
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
		defer cancel()
		d, err := e.tw.Probe(ctx, strings.TrimLeft(who, "/"))
		if err == nil && out != nil {
			*out = C.int64_t(d)
		}
		return err
	})))
}

//export twBuffers
func twBuffers(handle C.uintptr_t, id C.int32_t) *C.char {
	var out *C.char
	_ = with(handle, func(e *engine) error {
		s, err := e.segment(int64(id))
		if err == nil {
			out, err = asJSON(buffersOf(s))
		}
		return err
	})
	return out
}

// offered is one buffer as tideway_segment_buffers shows it.
type offered struct {
	Name     string            `json:"name"`
	Addr     uint64            `json:"addr"`
	Length   uint64            `json:"length"`
	Location topology.Location `json:"location"`
	Access   string            `json:"access"`
}

func buffersOf(s *tideway.Segment) []offered {
	all := []offered{}
	for _, b := range s.Buffers() {
		all = append(all, offered{b.Name, b.Addr, b.Length, b.Location, b.Access.String()})
	}
	return all
}

//export twExplain
func twExplain(handle C.uintptr_t, r *C.struct_transfer_request) *C.char {
	var out *C.char
	_ = with(handle, func(e *engine) error {
		if r == nil {
			return null("explain", "request")
		}
		req, err := e.request(r)
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
		defer cancel()
		x, err := e.tw.Explain(ctx, req)
		if err != nil {
			return err
		}
		out, err = asJSON(struct {
			Segment    string              `json:"segment"`
			Peer       string              `json:"peer"`
			Chosen     []string            `json:"chosen"`
			Candidates []tideway.Candidate `json:"candidates"`
			Error      *reason             `json:"error,omitempty"`
		}{x.Segment, x.Peer, x.Chosen, x.Candidates, describe(x.Err)})
		return err
	})
	return out
}

//export twInspect
func twInspect(handle C.uintptr_t) *C.char {
	var out *C.char
	_ = with(handle, func(e *engine) (err error) {
		out, err = asJSON(e.tw.Inspect())
		return err
	})
	return out
}

// reason is an error as JSON: what errs.Error has, and its text.
type reason struct {
	Text      string `json:"text"`
	Reason    string `json:"reason"`
	Op        string `json:"op,omitempty"`
	Segment   string `json:"segment,omitempty"`
	Peer      string `json:"peer,omitempty"`
	Transport string `json:"transport,omitempty"`
	Stage     string `json:"stage,omitempty"`
	Detail    string `json:"detail,omitempty"`
	Retryable bool   `json:"retryable"`
	InDoubt   bool   `json:"in_doubt"`
	Attempts  int    `json:"attempts,omitempty"`
}

// describe returns err as JSON has it, nil for nil.
func describe(err error) *reason {
	if err == nil {
		return nil
	}
	r := &reason{Text: err.Error(), Reason: errs.Of(err).String()}
	var x *errs.Error
	if errors.As(err, &x) {
		r.Op, r.Segment, r.Peer, r.Transport, r.Stage, r.Detail = x.Op, x.Segment, x.Peer, x.Transport, x.Stage, x.Detail
		r.Retryable, r.InDoubt, r.Attempts = x.Retryable, x.InDoubt, len(x.Attempts)
	}
	return r
}
