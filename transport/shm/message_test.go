package shm

import (
	"bytes"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/internal/mem"
	"github.com/tideway-io/tideway/internal/testenv"
	"github.com/tideway-io/tideway/segment"
	"github.com/tideway-io/tideway/transport"
)

// samples are a message of each kind.
func samples() []message {
	life := proof{0x1234, [lifeSize]byte{1, 2, 3}}
	return []message{
		{head: head{kind: kindHello, code: version}, secret: [secretSize]byte{9, 8}, from: 1, to: 2, life: life},
		{head: head{kind: kindWelcome, code: errs.Draining}, from: 3, life: life, text: "going"},
		{head: head{kind: kindWelcome}, from: 3, life: life},
		{head: head{kind: kindAsk}, id: 4, op: transport.Write, key: 5, offset: 6, size: 7},
		{head: head{kind: kindAnswer, code: errs.Denied}, id: 8},
		{head: head{kind: kindFetch}, id: 9},
		{head: head{kind: kindFetched}, id: 10, size: 11, writable: true},
		{head: head{kind: kindRevoked}, id: 12},
		{head: head{kind: kindSettled}, id: 13},
		{head: head{kind: kindDrain}},
		{head: head{kind: kindDrained}},
	}
}

func TestMessagesRoundTrip(t *testing.T) {
	for _, want := range samples() {
		b := want.append(nil)
		var got message
		if err := got.parse(b); err != nil {
			t.Errorf("kind %d: %v", want.kind, err)
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%+v\nbecame %+v", want, got)
		}
		for n := range b {
			if err := got.parse(b[:n]); err == nil && !(want.kind == kindWelcome && n >= len(b)-len(want.text)) {
				t.Errorf("kind %d cut to %d of %d bytes is a message", want.kind, n, len(b))
			}
		}
	}
	long := message{head: head{kind: kindWelcome}, text: strings.Repeat("x", 3000)}
	var got message
	if err := got.parse(long.append(nil)); err != nil || len(got.text) != maxReason {
		t.Errorf("a long reason: %d bytes, %v", len(got.text), err)
	}
	q := request{1, 2, 3, 4, 5, 6}
	b := appendRequest(appendRequest(appendHead(nil, head{kind: kindPull, class: 1, count: 2}), &request{}), &q)
	if err := got.parse(b); err != nil || got.request(1) != q || got.class != 1 {
		t.Errorf("%+v, %v", got, err)
	}
	r := result{7, 8, errs.Revoked}
	b = appendResult(appendHead(nil, head{kind: kindPulled, count: 1}), r)
	if err := got.parse(b); err != nil || got.result(0) != r {
		t.Errorf("%+v, %v", got, err)
	}
	for code, want := range map[errs.Code]errs.Code{errs.Internal: errs.LaneLost, 0xffff: errs.LaneLost, 0x7f: errs.LaneLost, errs.OK: errs.OK, errs.Denied: errs.Denied} {
		if got := known(code); got != want {
			t.Errorf("code %#x is taken as %v, want %v", uint16(code), got, want)
		}
	}
}

func TestOffers(t *testing.T) {
	e := start(t, options{})
	good := e.card().Offer
	if _, err := parseOffer(good); err != nil {
		t.Error(err)
	}
	for _, name := range []string{"", "../../etc/passwd", "/run/other.sock", namePrefix, namePrefix + "../../../../../../../../etc/pwd", namePrefix + strings.Repeat("G", 32), "\x00" + namePrefix} {
		if o, err := parseOffer(append(bytes.Clone(good[:1+secretSize]), name...)); err == nil {
			t.Errorf("an offer of %q was taken: %q", name, o.name)
		}
	}
	if _, err := parseOffer(nil); err == nil {
		t.Error("no offer was taken")
	}
	if _, err := e.answer(t.Context(), 1, []byte{version + 1}); errs.Of(err) != errs.Unsupported {
		t.Errorf("a question of the next version: %v", err)
	}
}

// FuzzMessage: whatever arrives is a message that encodes to the same bytes, or
// an error.
func FuzzMessage(f *testing.F) {
	for _, m := range samples() {
		f.Add(m.append(nil))
	}
	f.Add(appendRequest(appendHead(nil, head{kind: kindPull, count: 1}), &request{1, 2, 3, 4, 5, 6}))
	f.Add(appendResult(appendHead(nil, head{kind: kindPulled, count: 1}), result{1, 2, 3}))
	f.Fuzz(func(t *testing.T, b []byte) {
		var m, again message
		if m.parse(b) != nil {
			return
		}
		for i := range int(m.count) {
			switch m.kind {
			case kindPull:
				m.request(i)
			case kindPulled:
				m.result(i)
			}
		}
		if m.kind == kindPull || m.kind == kindPulled {
			return
		}
		if err := again.parse(m.append(nil)); err != nil || !reflect.DeepEqual(m, again) {
			t.Errorf("%+v became %+v, %v", m, again, err)
		}
	})
}

// fuzzPart cuts b into messages, each behind a byte that gives its length.
func fuzzPart(b []byte) (part, rest []byte) {
	if len(b) == 0 {
		return nil, nil
	}
	n := min(int(b[0])+1, len(b)-1)
	return b[1 : 1+n], b[1+n:]
}

func addStreams(f *testing.F, ms []message) {
	var all []byte
	for _, m := range ms {
		b := m.append(nil)
		all = append(append(all, byte(len(b)-1)), b...)
		f.Add(append([]byte{byte(len(b) - 1)}, b...))
	}
	f.Add(all)
}

// FuzzTarget sends an engine what a fuzzer makes up, as an initiator that it let
// in. The buffers that are not for writing stay as they are, and an honest
// initiator is served.
func FuzzTarget(f *testing.F) {
	addStreams(f, samples())
	e, other := start(f, options{}), start(f, options{})
	safe := e.must(e.heap("safe", 4096, segment.RemoteRead))
	testenv.Fill(safe.Bytes(), testenv.KeyOf(1, 0), 0)
	good := e.must(e.heap("good", 4096, segment.ReadWrite))
	source := make([]byte, 4096)
	pull := appendHead(nil, head{kind: kindPull, count: 2})
	for _, key := range []segment.Key{safe.Desc().Key, good.Desc().Key} {
		pull = appendRequest(pull, &request{key: key, seq: 1, size: 4096, addr: uint64(mem.Addr(source))})
	}
	f.Add(append([]byte{byte(len(pull) - 1)}, pull...))
	ep := other.connect(e.card())
	f.Fuzz(func(t *testing.T, b []byte) {
		in := newFakeInitiator(t, e.engine)
		for len(b) > 0 {
			var part []byte
			if part, b = fuzzPart(b); len(part) > 0 && in.p.WaitSend(part, -1) != nil {
				break
			}
		}
		honest := &testEngine{t, other.engine, other.tags}
		if c := honest.do(ep, transport.Write, source, good.Desc(), 0); c.Code != errs.OK {
			t.Errorf("an honest WRITE: %v", c.Code)
		}
		_ = in.p.Close()
		if err := verify(safe.Bytes(), 1); err != nil {
			t.Error(err)
		}
	})
}

// FuzzInitiator sends an engine what a fuzzer makes up, as the target of its
// slices. Each ends once, and soon after the target is gone.
func FuzzInitiator(f *testing.F) {
	addStreams(f, samples())
	f.Fuzz(func(t *testing.T, b []byte) {
		e, target := start(t, options{}), newFakeTarget(t)
		memory := make([]byte, 4096)
		lent := target.publish(entry{key: 1, access: segment.ReadWrite, addr: uint64(mem.Addr(memory)), length: 4096, allocation: 9})
		plain := target.publish(entry{key: 2, access: segment.ReadWrite, addr: uint64(mem.Addr(memory)), length: 4096})
		ep := target.connect(e)
		local := make([]byte, 4096)
		tags := e.post(ep, transport.Slice{Op: transport.Write, Local: local, Buffer: lent}, transport.Slice{Op: transport.Write, Local: local, Buffer: plain},
			transport.Slice{Op: transport.Read, Local: local, Buffer: &segment.Buffer{Key: 3}})
		for len(b) > 0 {
			var part []byte
			if part, b = fuzzPart(b); len(part) > 0 && target.p.WaitSend(part, target.table.fd) != nil {
				break
			}
		}
		target.hangUp()
		began := time.Now()
		e.await(tags...)
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("the slices ended after %v", took)
		}
	})
}
