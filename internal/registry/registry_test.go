package registry

import (
	"context"
	"errors"
	"testing"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/segment"
	"github.com/tideway-io/tideway/transport"
)

func TestRegisterPinClose(t *testing.T) {
	r := New(Options{})
	mem := make([]byte, 100)
	b, err := r.Register(t.Context(), Registration{Name: "weights", Bytes: mem, Access: segment.RemoteRead})
	if err != nil {
		t.Fatal(err)
	}
	p, code := r.Pin(transport.Read, b.Desc().Key, 10, 90)
	if code != errs.OK || &p.Bytes[0] != &mem[10] || len(p.Bytes) != 90 {
		t.Fatalf("Pin: %v, %d bytes", code, len(p.Bytes))
	}
	if err := b.TryClose(); !errors.Is(err, errs.ErrBusy) {
		t.Errorf("TryClose with a pin inside: %v, want ErrBusy", err)
	}
	p.Unpin()
	if err := b.Close(context.Background()); err != nil {
		t.Errorf("Close: %v", err)
	}
	if _, code := r.Pin(transport.Read, b.Desc().Key, 0, 1); code != errs.Revoked {
		t.Errorf("Pin after Close: %v, want revoked", code)
	}
}
