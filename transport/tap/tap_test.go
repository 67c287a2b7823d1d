package tap_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/segment"
	"github.com/tideway-io/tideway/transport"
	"github.com/tideway-io/tideway/transport/memory"
	"github.com/tideway-io/tideway/transport/tap"
	"github.com/tideway-io/tideway/transport/tcp"
	"github.com/tideway-io/tideway/transport/transporttest"
)

// fake accepts two slices of a post and completes them at once.
type fake struct {
	transport.Transport
	sink transport.Sink
}

func (*fake) Name() string                { return "fake" }
func (*fake) Probe(context.Context) error { return nil }

func (f *fake) Open(_ context.Context, env transport.Env) (transport.Transport, error) {
	f.sink = env.Sink
	return f, nil
}

func (f *fake) Connect(_ context.Context, peer *segment.Desc) (transport.Endpoint, error) {
	if peer.Name == "" {
		return nil, errs.New(errs.Refused, "connect", "nobody")
	}
	return fakeEndpoint{f}, nil
}

type fakeEndpoint struct{ *fake }

func (e fakeEndpoint) Rails() []transport.Rail { return make([]transport.Rail, 1) }
func (e fakeEndpoint) Cancel([]transport.Tag)  {}

func (e fakeEndpoint) Post(s []transport.Slice) (int, error) {
	e.sink.Complete([]transport.Completion{{Tag: s[0].Tag}, {Tag: s[1].Tag, Code: errs.LaneLost, InDoubt: true}})
	return 2, errs.New(errs.Overloaded, "post", "two is enough")
}

func (e fakeEndpoint) Close() error { return errs.ErrBusy }

// ignore is a sink.
type ignore struct{}

func (ignore) Complete([]transport.Completion) {}

// traffic makes one event of each kind.
func traffic(t *testing.T, record func(tap.Event)) {
	t.Helper()
	tr, err := tap.Wrap(&fake{}, record).Open(t.Context(), transport.Env{Sink: ignore{}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tr.Connect(t.Context(), &segment.Desc{}); errs.Of(err) != errs.Refused {
		t.Errorf("connect: %v", err)
	}
	ep, err := tr.Connect(t.Context(), &segment.Desc{Name: "peer"})
	if err != nil {
		t.Fatal(err)
	}
	s := make([]transport.Slice, 4)
	for i := range s {
		s[i] = transport.Slice{Op: transport.Write, Local: make([]byte, 10), Tag: transport.Tag(i + 1), Buffer: &segment.Buffer{Key: 7}, Offset: 5}
	}
	if n, err := ep.Post(s); n != 2 || !errors.Is(err, errs.ErrOverloaded) {
		t.Errorf("post: %d, %v", n, err)
	}
	c, ok := transport.As[transport.Canceler](ep)
	if !ok {
		t.Fatal("the ability to cancel is lost")
	}
	c.Cancel([]transport.Tag{2})
	if err := ep.Close(); !errors.Is(err, errs.ErrBusy) {
		t.Errorf("close: %v", err)
	}
}

func TestEvents(t *testing.T) {
	var got []string
	traffic(t, func(e tap.Event) {
		if e.At.IsZero() || e.Transport != "fake" || (e.Op != 0) != (e.Key == 7 && e.Offset == 5 && e.Bytes == 10) {
			t.Errorf("incomplete event: %+v", e)
		}
		got = append(got, fmt.Sprint(e.Kind, e.Tag, e.Code))
	})
	want := []string{
		"connect 0 refused", "connect 0 ok",
		"post 1 ok", "post 2 ok", "post 3 ok", "post 4 ok",
		"complete 1 ok", "complete 2 lane_lost",
		"refuse 3 overloaded", "refuse 4 ok",
		"cancel 2 ok", "close 0 busy",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestRing(t *testing.T) {
	r := tap.NewRing(3)
	if kept, lost := r.Events(); len(kept) != 0 || lost != 0 {
		t.Errorf("an empty ring has %v and lost %d", kept, lost)
	}
	traffic(t, r.Record)
	kept, lost := r.Events()
	if len(kept) != 3 || lost != 9 || kept[0].Kind != tap.Refuse || kept[2].Kind != tap.Close {
		t.Errorf("kept %v, lost %d; want the last 3 of 12", kept, lost)
	}
}

func TestLog(t *testing.T) {
	var out bytes.Buffer
	traffic(t, tap.Log(slog.New(slog.NewTextHandler(&out, nil)))) // info: no debug lines
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 4 {
		t.Errorf("%d lines, want the 4 failures:\n%s", len(lines), out.String())
	}
	if want := "level=WARN msg=complete transport=fake peer=peer tag=2 op=write bytes=10 key=7 offset=5"; !strings.Contains(out.String(), want) {
		t.Errorf("no line contains %q:\n%s", want, out.String())
	}
}

// TestConformance: the decorator changes no promise.
func TestConformance(t *testing.T) {
	for _, inner := range []func() transport.Driver{
		func() transport.Driver { return memory.NewHub().Driver() },
		func() transport.Driver { return tcp.New() },
	} {
		t.Run(inner().Name(), func(t *testing.T) {
			ring := tap.NewRing(1000)
			transporttest.Run(t, transporttest.Config{Driver: func() transport.Driver { return tap.Wrap(inner(), ring.Record) }})
		})
	}
}
