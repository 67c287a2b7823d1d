package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"time"

	"github.com/tideway-io/tideway"
	"github.com/tideway-io/tideway/errs"
	"github.com/zeebo/xxh3"
)

// How long a put waits for answers, and how often it asks.
const (
	begunWait  = 15 * time.Second
	endedWait  = 30 * time.Second // plus a second for each endedRate bytes
	endedRate  = 32 << 20
	goodbye    = 2 * time.Second
	askFirst   = time.Millisecond
	askAtMost  = 100 * time.Millisecond
	maxOutcome = 4 * maxDetail
)

// session is one put of a whole file, seen from the client.
type session struct {
	e   *tideway.Engine
	seg *tideway.Segment
	id  string
	to  place
}

// replace puts the source in place of a file of the other side.
func (p *put) replace(ctx context.Context, e *tideway.Engine, seg *tideway.Segment, src *source) (m moved, err error) {
	if !src.known {
		spooled, err := spool(ctx, src)
		if err != nil {
			return m, err
		}
		defer spooled.Close()
		src = spooled
	}
	s := &session{e: e, seg: seg, id: hashText(rand.Uint64()), to: p.to}
	defer s.end(ctx)
	if err := s.begin(ctx, src.size); err != nil {
		return m, err
	}
	hash := xxh3.New()
	if src.size > 0 {
		r, err := seg.Buffer(ctx, putBuffer(s.id, dataBuffer))
		if err != nil {
			return m, err
		}
		if m, err = p.copy(ctx, e, r, 0, src, io.TeeReader(src, hash)); errors.Is(err, errs.ErrOverloaded) {
			return m, &hinted{err, "if the file system of the other side is full, or a quota there is reached: " + roomFix}
		} else if err != nil {
			return m, err
		}
	}
	m.Name = p.to.name
	return m, s.commit(ctx, hash.Sum64(), src.size)
}

// begin announces the put and waits until its buffer is there.
func (s *session) begin(ctx context.Context, size uint64) error {
	if err := s.tell(ctx, putBegin, putMessage{ID: s.id, Name: s.to.name, Size: size}); err != nil {
		return err
	}
	return s.outcome(ctx, begunBuffer, begunWait)
}

// commit asks for the exchange of the files and waits for it.
func (s *session) commit(ctx context.Context, hash, size uint64) error {
	if err := s.tell(ctx, putCommit, putMessage{ID: s.id, Hash: hashText(hash)}); err != nil {
		return err
	}
	err := s.outcome(ctx, endedBuffer, endedWait+time.Duration(size/endedRate)*time.Second)
	if errors.Is(err, errs.ErrUnreachable) || errors.Is(err, errs.ErrStale) || errors.Is(err, context.DeadlineExceeded) {
		return &hinted{err, "the file may or may not have been replaced: tideway stat " + s.to.addr + "/" + s.to.name + " shows"}
	}
	return err
}

// end lets the other side forget the put, also when ctx has ended. It is a
// courtesy: what is not ended is given up over there after a while.
func (s *session) end(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), goodbye)
	defer cancel()
	_ = s.tell(ctx, putEnd, putMessage{ID: s.id})
}

func (s *session) tell(ctx context.Context, name string, m putMessage) error {
	return s.e.Notify(ctx, s.seg, tideway.Notification{Name: name, Body: m.encode()})
}

// outcome waits for an answer and returns the failure it reports.
func (s *session) outcome(ctx context.Context, what string, limit time.Duration) error {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, errs.New(errs.Unresponsive, "put", "no answer within %v", limit))
	defer cancel()
	for pause := askFirst; ; pause = min(2*pause, askAtMost) {
		r, err := s.seg.Buffer(ctx, putBuffer(s.id, what))
		if err == nil {
			return s.fetch(ctx, r)
		}
		if !errors.Is(err, errs.ErrNotFound) {
			return err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (s *session) fetch(ctx context.Context, r *tideway.RemoteBuffer) error {
	if r.Len() > maxOutcome {
		return errs.New(errs.Invalid, "put", "an answer of %d bytes, %d are allowed", r.Len(), maxOutcome)
	}
	text := make([]byte, r.Len())
	if _, err := r.ReadAt(ctx, text, 0); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	var o outcome
	if err := json.Unmarshal(text, &o); err != nil {
		return errs.New(errs.Invalid, "put", "answer: %v", err)
	}
	return o.error(s.to.addr + "/" + s.to.name)
}

// spool copies a stream to a temporary file, as the size must be known before
// the first byte goes out. The file has no name by the time this returns.
func spool(ctx context.Context, src *source) (*source, error) {
	f, err := os.CreateTemp("", "tideway-put-*")
	if err != nil {
		return nil, err
	}
	err = os.Remove(f.Name())
	if err == nil {
		_, err = io.Copy(f, src.Reader)
	}
	if err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("keep standard input in a temporary file: %w", err)
	}
	return newSource(ctx, f, true)
}
