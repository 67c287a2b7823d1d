package main

import (
	"encoding/json"
	"errors"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/tideway-io/tideway/errs"
)

// How a whole file is put in place of another, on top of notifications and
// buffers, so that nothing but the engine is needed and the server never dials:
//
//	client  notifies begin{id, name, size}
//	server  makes a temporary file beside the path, offers it as ID/data, and
//	        answers with the buffer ID/begun that holds an outcome
//	client  writes ID/data and notifies commit{id, hash}
//	server  checks size and hash, syncs, renames, offers the name anew, and
//	        answers with ID/ended
//	client  notifies end{id}; so it does when it gives up earlier
//
// ID is the marker, a slash, and the put's id in 16 hexadecimal digits. Answers
// never change once offered. A server that takes puts offers the marker itself.
const (
	putMarker = "tideway.put"
	putBegin  = putMarker + "/begin"
	putCommit = putMarker + "/commit"
	putEnd    = putMarker + "/end"

	dataBuffer  = "data"
	begunBuffer = "begun"
	endedBuffer = "ended"
)

// putMessage is the body of a notification.
type putMessage struct {
	ID   string `json:"id"`
	Name string `json:"name,omitempty"`
	Size uint64 `json:"size,omitempty"`
	Hash string `json:"hash,omitempty"` // xxh3-64 of the whole content, 16 hexadecimal digits
}

func (m putMessage) encode() []byte {
	b, err := json.Marshal(m)
	if err != nil {
		panic("encode strings and a number: " + err.Error())
	}
	return b
}

// decodePut reads a message and checks its id.
func decodePut(body []byte) (putMessage, error) {
	var m putMessage
	if err := json.Unmarshal(body, &m); err != nil {
		return m, errs.New(errs.Invalid, "put", "message: %v", err)
	}
	if _, err := strconv.ParseUint(m.ID, 16, 64); err != nil || len(m.ID) != 16 {
		return m, errs.New(errs.Invalid, "put", "id %q: want 16 hexadecimal digits", m.ID)
	}
	return m, nil
}

// putBuffer names a buffer of a put.
func putBuffer(id, what string) string { return putMarker + "/" + id + "/" + what }

// outcome is an answer: a code, and a detail when it is not OK.
type outcome struct {
	Code   errs.Code `json:"code"`
	Detail string    `json:"detail,omitempty"`
	Fix    string    `json:"fix,omitempty"` // what to do, where the code alone does not say
}

// maxDetail bounds what an answer says.
const maxDetail = 1024

func outcomeOf(err error) outcome {
	if err == nil {
		return outcome{}
	}
	text := err.Error()
	o := outcome{Code: errs.Of(err), Detail: text[:min(len(text), maxDetail)]}
	switch {
	case errors.Is(err, unix.EDQUOT):
		o.Code, o.Fix = errs.Overloaded, "raise the quota of the user who serves, or remove files of theirs"
	case errors.Is(err, unix.ENOSPC):
		o.Code, o.Fix = errs.Overloaded, roomFix
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM), errors.Is(err, unix.EROFS):
		o.Code, o.Fix = errs.Denied, "the process that serves must be allowed to make files in that directory: a put writes beside the file"
	}
	return o
}

const roomFix = "make room on the file system of the other side; a put needs its whole size beside the file that it replaces"

// error returns the failure that an answer reports.
func (o outcome) error(segment string) error {
	if o.Code == errs.OK {
		return nil
	}
	e := &errs.Error{Op: "put", Segment: segment, Reason: o.Code, Detail: "the other side says: " + o.Detail}
	if o.Code == errs.Internal { // the code of what has none
		e.Reason = errs.OK
	}
	if o.Fix != "" {
		return &hinted{e, o.Fix}
	}
	return e
}
