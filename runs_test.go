package tideway_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/tideway-io/tideway"
	"github.com/tideway-io/tideway/segment"
)

// TestMixedCall: neighbours that ask alike travel as runs, and whatever stands
// between them does not matter: each request has its own bytes and its own end.
func TestMixedCall(t *testing.T) {
	const n, size = 400, 1 << 20
	e, other := open(t, tideway.Config{}), open(t, tideway.Config{})
	for turn, owner := range []*tideway.Engine{e, other, e, other} {
		byAddr := turn >= 2
		r := rand.New(rand.NewPCG(1, 2))
		name := fmt.Sprint("mixed ", turn)
		remote := alloc(t, owner, name, size, segment.ReadWrite)
		s, kv := find(t, e, owner.Addr(), name)
		local := alloc(t, e, "local "+name, size, segment.LocalOnly)
		plain := make([]byte, size)
		for i := range plain {
			plain[i] = byte(r.Uint32())
		}
		copy(local.Bytes(), plain)
		want, bad := make([]byte, size), map[int]bool{}
		var reqs []tideway.Request
		for at := uint64(0); len(reqs) < n; {
			length := []uint64{64, 64, 64, 64, 4096, 0}[r.IntN(6)]
			if r.IntN(40) == 0 {
				length = 70_000
			}
			if at+length > size {
				break
			}
			req := tideway.Request{Op: tideway.Write, Local: local.Range(at, length), Remote: kv.At(at)}
			if byAddr {
				req.Remote = s.At(remote.Addr() + at)
			}
			switch r.IntN(30) {
			case 0:
				req.Local = tideway.Bytes(plain[at : at+length])
			case 1:
				req.Priority = tideway.Bulk
			case 2:
				req.Tenant = "somebody"
			case 3:
				req.Remote = kv.At(size - length + 1) // leaves the buffer
				bad[len(reqs)] = true
			}
			if !bad[len(reqs)] {
				copy(want[at:at+length], plain[at:])
			}
			reqs = append(reqs, req)
			at += length
		}
		b, err := e.Submit(t.Context(), reqs...)
		if err != nil {
			t.Fatal(err)
		}
		<-b.Done()
		seen := 0
		for i, res := range b.Results() {
			seen++
			if got := errors.Is(res.Err, tideway.ErrInvalid); got != bad[i] || !got && (res.Err != nil || res.Bytes != reqs[i].Local.Len()) {
				t.Errorf("request %d of %d bytes: %+v, want a failure: %v", i, reqs[i].Local.Len(), res, bad[i])
			}
		}
		if seen != len(reqs) || len(bad) == 0 {
			t.Errorf("%d of %d requests have ended, %d were bad", seen, len(reqs), len(bad))
		}
		if !bytes.Equal(remote.Bytes(), want) {
			t.Error("the bytes are not those that were written")
		}
		if err := local.Close(); err != nil {
			t.Errorf("the local buffer is still held: %v", err)
		}
	}
}
