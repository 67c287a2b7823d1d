package main

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/tideway-io/tideway"
	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/segment"
	"github.com/tideway-io/tideway/topology"
)

// findBuffer looks a buffer up and, if there is none, says what there is.
func findBuffer(ctx context.Context, seg *tideway.Segment, name string) (*tideway.RemoteBuffer, error) {
	r, err := seg.Buffer(ctx, name)
	if !errors.Is(err, errs.ErrNotFound) {
		return r, err
	}
	names := offered(seg)
	if len(names) == 0 {
		return nil, &hinted{err, seg.Name() + " offers nothing by name"}
	}
	next := "it offers " + strings.Join(names[:min(len(names), 8)], ", ")
	if w := nearest(name, names); w != "" {
		next = "did you mean " + w + "? tideway ls " + seg.Name() + " lists what there is"
	} else if len(names) > 8 {
		next += " and more: tideway ls " + seg.Name()
	}
	return nil, &hinted{err, next}
}

// life is one registration of a buffer.
type life struct {
	engine segment.Incarnation
	key    segment.Key
}

// awaitBuffer is findBuffer that gives a name which is not there a moment to
// come: a file that is being replaced is away for as long as it takes to offer
// the new one. The moment is longer after an attempt that turned out stale, and
// then what it found is waited out: a file that changed is offered anew once it
// was left alone for a while.
func awaitBuffer(ctx context.Context, seg *tideway.Segment, name string, stale life) (*tideway.RemoteBuffer, error) {
	patience := nameMayCome
	if stale != (life{}) {
		patience = nameWillCome
	}
	for deadline := time.Now().Add(patience); ; {
		r, err := findBuffer(ctx, seg, name)
		there := err == nil && (life{seg.Incarnation(), r.Desc().Key}) != stale
		if there || err != nil && !errors.Is(err, errs.ErrNotFound) || time.Now().After(deadline) {
			return r, err
		}
		select {
		case <-time.After(askAgain):
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		if err == nil {
			if err := seg.Refresh(ctx); err != nil {
				return nil, err
			}
		}
	}
}

// How often a thing that is about to come is looked for, and how long a name is,
// at first and when it was there a moment ago.
const (
	askAgain     = 50 * time.Millisecond
	nameMayCome  = 2 * askAgain
	nameWillCome = 3 * time.Second
)

// offered returns the names that a segment offers to people.
func offered(seg *tideway.Segment) []string {
	var names []string
	for _, b := range seg.Buffers() {
		if b.Name != "" && !internalName(b.Name) {
			names = append(names, b.Name)
		}
	}
	return names
}

// internalName reports whether a buffer belongs to the put protocol.
func internalName(name string) bool {
	return name == putMarker || strings.HasPrefix(name, putMarker+"/")
}

// may refuses what the published access does not allow, before anything moves.
func may(seg *tideway.Segment, b *segment.Buffer, want segment.Access) error {
	if b.Access&want != 0 {
		return nil
	}
	verb := "read"
	if want == segment.RemoteWrite {
		verb = "write"
	}
	return &errs.Error{Op: verb, Segment: seg.Name() + "/" + b.Name, Reason: errs.Denied, Detail: "it is served " + b.Access.String()}
}

// identityOf says which bytes a range of a published buffer is.
func identityOf(seg *tideway.Segment, b *segment.Buffer, offset, length uint64) identity {
	id := identity{Name: b.Name, Offset: offset, Length: length}
	if b.Location == topology.File && b.Source != (segment.Source{}) {
		id.Size, id.ModTime, id.Inode, id.Device = b.Source.Size, b.Source.ModTime, b.Source.Inode, b.Source.Device
		return id
	}
	id.Incarnation, id.Key = seg.Incarnation().String(), uint32(b.Key)
	return id
}

// retries bounds how often a copy starts again because the other side changed.
const retries = 3
