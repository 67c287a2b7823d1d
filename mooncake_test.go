package tideway_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tideway-io/tideway"
	"github.com/tideway-io/tideway/internal/testenv"
	"github.com/tideway-io/tideway/metadata/memory"
	"github.com/tideway-io/tideway/segment"
)

// join opens an engine that joins a Mooncake cluster, with one buffer.
func join(t *testing.T, n uint64, access segment.Access, set func(*tideway.Config)) (*tideway.Engine, *tideway.Buffer) {
	t.Helper()
	cfg := tideway.Config{Mooncake: &tideway.Mooncake{}, Logger: slog.New(slog.DiscardHandler)}
	if set != nil {
		set(&cfg)
	}
	e, err := tideway.Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.Close() })
	b, err := e.Alloc(n, tideway.BufferOptions{Name: "b", Access: access})
	if err != nil {
		t.Fatal(err)
	}
	return e, b
}

func openNamed(t *testing.T, e *tideway.Engine, name string) *tideway.Segment {
	t.Helper()
	s, err := e.OpenSegment(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// TestMooncakeTarget: an engine of Mooncake's reads and writes ours, in both
// versions, with a connection for each request and with one for all.
func TestMooncakeTarget(t *testing.T) {
	for _, op := range []byte{0x00, 0x80} {
		for _, pooled := range []bool{false, true} {
			t.Run(fmt.Sprintf("v%d pooled %t", 1+op>>7, pooled), func(t *testing.T) {
				testenv.Leak(t)
				f := startForeign(t, 2, nil)
				e, b := join(t, 1<<20, segment.ReadWrite, nil)
				d, data := f.openTheirs(e.Name())
				if d.Protocol != "tcp" || d.Version != 2 || d.Name != e.Name() || len(d.Buffers) != 1 || d.Buffers[0].Name == "" {
					t.Fatalf("%+v", d)
				}
				c := mustDial(t, data)
				for i, n := range []uint64{1, 64, 65537, 1 << 20} {
					want := bytes.Repeat([]byte{byte(i + 1)}, int(n))
					if s, _, err := request(t, c, op|1, d.Buffers[0].Addr, n, want); s != 0 || err != nil {
						t.Fatal(s, err)
					}
					if !pooled && op == 0x80 {
						_ = c.Close()
						c = mustDial(t, data)
					}
					if s, got, err := request(t, c, op, d.Buffers[0].Addr, n, nil); s != 0 || err != nil || !bytes.Equal(got, want) {
						t.Fatalf("%d bytes: status %d, %v", n, s, err)
					}
					if !bytes.Equal(b.Bytes()[:n], want) {
						t.Fatalf("%d bytes are not in the buffer", n)
					}
				}
			})
		}
	}
}

// TestMooncakeTargetRefuses: what is not within one buffer that allows it, with a
// status in version 2, and the connection's end in both.
func TestMooncakeTargetRefuses(t *testing.T) {
	testenv.Leak(t)
	f := startForeign(t, 2, nil)
	e, _ := join(t, 4096, segment.RemoteRead, nil)
	hidden, err := e.Alloc(4096, tideway.BufferOptions{Name: "hidden"})
	if err != nil {
		t.Fatal(err)
	}
	d, data := f.openTheirs(e.Name())
	if len(d.Buffers) != 1 {
		t.Fatalf("local-only memory is published: %+v", d.Buffers)
	}
	a := d.Buffers[0].Addr
	own := hidden.Addr()
	for _, c := range []struct {
		op         byte
		addr, size uint64
	}{
		{0x80, a + 4095, 2}, {0x80, a, 0}, {0x80, a - 1, 1}, {0x80, ^uint64(0), 2}, {0x80, a, ^uint64(0)}, {0x80, 0, 1},
		{0x81, a, 64}, {0x80, own, 64}, {0x81, own, 64}, {0xc2, a, 4097}, {0x00, a, 4097}, {0x01, a, 64},
	} {
		conn := mustDial(t, data)
		payload := []byte(nil)
		if c.op&0x7f == 1 {
			payload = make([]byte, c.size)
		}
		status, _, err := request(t, conn, c.op, c.addr, c.size, payload)
		if v2 := c.op&0x80 != 0; v2 && (status != 1 || err != nil) {
			t.Errorf("%+v: status %d, %v", c, status, err)
		}
		if n, err := conn.Read(make([]byte, 1)); n != 0 || err == nil {
			t.Errorf("%+v: the connection goes on", c)
		}
	}
	if got, want := e.Inspect().Buffers, 2; len(got) != want {
		t.Error(got)
	}
	conn := mustDial(t, data) // and goes on for others; unknown operations read
	if s, got, err := request(t, conn, 0xc2, a, 4096, nil); s != 0 || err != nil || len(got) != 4096 {
		t.Error(s, err)
	}
}

// TestMooncakeInitiator: ours reads and writes theirs.
func TestMooncakeInitiator(t *testing.T) {
	for _, c := range []struct {
		name    string
		version int
		force1  bool
		once    bool
		want    string // a header that must have been seen
	}{
		{"v2", 2, false, false, "0x81 1048576"}, {"v2, asked for v1", 2, true, false, "0x1 1048576"},
		{"v1", 1, false, false, "0x1 1048576"},
	} {
		t.Run(c.name, func(t *testing.T) {
			testenv.Leak(t)
			f := startForeign(t, c.version, func(f *foreign) { f.once = c.once })
			e, local := join(t, 4<<20, segment.LocalOnly, func(cfg *tideway.Config) { cfg.Mooncake.Version1 = c.force1 })
			s := openNamed(t, e, f.name())
			p := local.Bytes()
			for i := range p {
				p[i] = byte(13*i + 5)
			}
			write := []tideway.Request{
				tideway.Request{Op: tideway.Write, Local: local.Range(0, 64), Remote: s.At(f.base + 0x200000)},
				tideway.Request{Op: tideway.Write, Local: local.Range(1<<20, 1<<20), Remote: s.At(f.base + 0x300000)},
				tideway.Request{Op: tideway.Write, Local: local.Range(0, 0), Remote: s.At(f.base)},
			}
			if err := e.Do(t.Context(), write...); err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(f.look(0x200000, 64), p[:64]) || !bytes.Equal(f.look(0x300000, 1<<20), p[1<<20:2<<20]) {
				t.Error("a WRITE that completed is not there")
			}
			if err := e.Do(t.Context(), tideway.Request{Op: tideway.Read, Local: local.Range(0, 2<<20), Remote: s.At(f.base)}); err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(p[:2<<20], f.look(0, 2<<20)) {
				t.Error("a READ that completed is not here")
			}
			f.mu.Lock()
			defer f.mu.Unlock()
			if !strings.Contains(strings.Join(f.served, "\n"), c.want) {
				t.Error(f.served)
			}
			if f.dials > 3 {
				t.Errorf("%d connections for a few requests", f.dials)
			}
		})
	}
}

// TestMooncakeRefusedByPeer: the request fails, those beside it do not.
func TestMooncakeRefusedByPeer(t *testing.T) {
	testenv.Leak(t)
	f := startForeign(t, 2, nil)
	e, local := join(t, 1<<20, segment.LocalOnly, nil)
	s := openNamed(t, e, f.name())
	f.mu.Lock()
	f.mem = f.mem[:1<<20] // it has unregistered the rest
	f.mu.Unlock()
	var reqs []tideway.Request
	for i := range uint64(32) {
		reqs = append(reqs, tideway.Request{Op: tideway.Write, Local: local.Range(i<<15, 1<<15), Remote: s.At(f.base + (i << 15))})
	}
	reqs[7] = tideway.Request{Op: tideway.Read, Local: local.Range(0, 64), Remote: s.At(f.base + (3 << 20))}
	b, err := e.Submit(t.Context(), reqs...)
	if err != nil {
		t.Fatal(err)
	}
	_ = b.Wait(t.Context())
	for i, r := range b.Results() {
		if want := i == 7; (r.Err != nil) != want || want && !errors.Is(r.Err, tideway.ErrStale) {
			t.Errorf("request %d: %v", i, r.Err)
		}
	}
}

// TestMooncakeWriteInDoubt: a peer that takes a WRITE and goes silent: it ends,
// in doubt, and is not sent twice.
func TestMooncakeWriteInDoubt(t *testing.T) {
	testenv.Leak(t)
	f := startForeign(t, 2, func(f *foreign) { f.hush = true })
	e, local := join(t, 4096, segment.LocalOnly, func(cfg *tideway.Config) { cfg.StallTimeout = 200 * time.Millisecond })
	s := openNamed(t, e, f.name())
	err := e.Do(t.Context(), tideway.Request{Op: tideway.Write, Local: local.Range(0, 4096), Remote: s.At(f.base)})
	var typed *tideway.Error
	if !errors.As(err, &typed) || !typed.InDoubt || !errors.Is(err, tideway.ErrUnreachable) {
		t.Errorf("%+v", err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.served) != 1 {
		t.Error("sent again:", f.served)
	}
}

// TestMooncakeRestartedPeer: one that comes back at another data port is found
// again by the request after the one that failed; nobody has to ask for it.
func TestMooncakeRestartedPeer(t *testing.T) {
	testenv.Leak(t)
	f := startForeign(t, 2, nil)
	e, local := join(t, 4096, segment.LocalOnly, nil)
	s := openNamed(t, e, f.name())
	read := tideway.Request{Op: tideway.Read, Local: local.Range(0, 4096), Remote: s.At(f.base)}
	if err := e.Do(t.Context(), read); err != nil {
		t.Fatal(err)
	}
	f.restart()
	testenv.Eventually(t, 20*time.Second, func() bool { return e.Do(t.Context(), read) == nil }, "the peer is found again")
	if got := s.Buffers()[0].Length; got != 1<<20 {
		t.Errorf("the buffer has %d bytes", got)
	}
}

// TestMooncakeRefresh: descriptors are fetched again at the interval asked for.
func TestMooncakeRefresh(t *testing.T) {
	testenv.Leak(t)
	f := startForeign(t, 2, nil)
	e, _ := join(t, 4096, segment.LocalOnly, func(c *tideway.Config) { c.Mooncake.Refresh = time.Second })
	s := openNamed(t, e, f.name())
	f.restart()
	testenv.Eventually(t, 20*time.Second, func() bool { return s.Buffers()[0].Length == 1<<20 }, "the change is seen")
}

// TestMooncakeAlias: a peer opened by another name than it publishes is dialled,
// and asked again, and counts as one.
func TestMooncakeAlias(t *testing.T) {
	testenv.Leak(t)
	f := startForeign(t, 2, nil)
	e, local := join(t, 4096, segment.LocalOnly, nil)
	_, port, _ := net.SplitHostPort(f.name())
	s := openNamed(t, e, net.JoinHostPort("localhost", port))
	if err := e.Do(t.Context(), tideway.Request{Op: tideway.Read, Local: local.Range(0, 64), Remote: s.At(f.base)}); err != nil {
		t.Fatal(err)
	}
	if err := s.Refresh(t.Context()); err != nil || s.Desc().Name != segment.Name(f.name()) {
		t.Error(s.Desc().Name, err)
	}
}

// TestMooncakeStore: in a store a segment has any name, and its engine's address
// stands beside it.
func TestMooncakeStore(t *testing.T) {
	testenv.Leak(t)
	f := startForeign(t, 2, nil)
	store := memory.New()
	host, port, _ := net.SplitHostPort(f.name())
	for key, value := range map[string]string{
		"mooncake/ram/kv":      strings.ReplaceAll(f.describe(), `"`+f.name()+`"`, `"kv"`) + "\n",
		"mooncake/rpc_meta/kv": fmt.Sprintf(`{"ip_or_host_name":"%s","rpc_port":%s}`+"\n", host, port),
		"mooncake/ram/lost":    strings.ReplaceAll(f.describe(), `"`+f.name()+`"`, `"lost"`),
	} {
		if err := store.Put(t.Context(), key, []byte(value)); err != nil {
			t.Fatal(err)
		}
	}
	e, local := join(t, 4096, segment.LocalOnly, func(c *tideway.Config) { c.Metadata = store })
	s := openNamed(t, e, "kv")
	if err := e.Do(t.Context(), tideway.Request{Op: tideway.Read, Local: local.Range(0, 4096), Remote: s.At(f.base)}); err != nil || !bytes.Equal(local.Bytes(), f.look(0, 4096)) {
		t.Error(err)
	}
	if err := e.Notify(t.Context(), s, tideway.Notification{Name: "n"}); err != nil {
		t.Error(err)
	}
	if _, err := e.OpenSegment(t.Context(), "lost"); !errors.Is(err, tideway.ErrNotFound) {
		t.Error(err)
	}
}

// TestMooncakeBesideNamedTransports: naming the transports for native peers does
// not turn it off.
func TestMooncakeBesideNamedTransports(t *testing.T) {
	testenv.Leak(t)
	f := startForeign(t, 2, nil)
	e, local := join(t, 4096, segment.ReadWrite, func(c *tideway.Config) { c.Transports = []string{"tcp"} })
	if d, _ := f.openTheirs(e.Name()); d.Port == 0 {
		t.Error("no data port is published")
	}
	s := openNamed(t, e, f.name())
	if err := e.Do(t.Context(), tideway.Request{Op: tideway.Read, Local: local.Range(0, 64), Remote: s.At(f.base)}); err != nil {
		t.Error(err)
	}
}

// TestMooncakePorts: free ports are those of Mooncake, IPv6 hosts are in brackets.
func TestMooncakePorts(t *testing.T) {
	testenv.Leak(t)
	for _, host := range []string{"127.0.0.1", "::1"} {
		e, _ := join(t, 4096, segment.LocalOnly, func(c *tideway.Config) { c.Listen = net.JoinHostPort(host, "0") })
		for _, addr := range []string{e.Name(), func() string { _, data := startForeign(t, 2, nil).openTheirs(e.Name()); return data }()} {
			h, p, err := net.SplitHostPort(addr)
			if n, _ := strconv.Atoi(p); err != nil || h != host || n < 15000 || n > 17000 {
				t.Error(addr, err)
			}
		}
	}
}

// TestMooncakeOtherProtocols: a segment of rdma alone can be opened and notified;
// a request says what is missing.
func TestMooncakeOtherProtocols(t *testing.T) {
	testenv.Leak(t)
	f := startForeign(t, 2, func(f *foreign) { f.protocol = `"rdma","devices":[{"name":"mlx5_0","gid":"00:01","lid":0}]` })
	e, local := join(t, 4096, segment.LocalOnly, nil)
	s := openNamed(t, e, f.name())
	err := e.Do(t.Context(), tideway.Request{Op: tideway.Read, Local: local.Range(0, 64), Remote: s.At(f.base)})
	if !errors.Is(err, tideway.ErrUnsupported) || !strings.Contains(err.Error(), "mooncake-rdma") {
		t.Error(err)
	}
	if err := e.Notify(t.Context(), s, tideway.Notification{Name: "n"}); err != nil {
		t.Error(err)
	}
	if k, text := ask(t, e.Name(), 0, `{"local_gid":"","local_lid":0,"local_nic_path":"a@mlx5_0","payload":"","peer_nic_path":"b@mlx5_1","qp_num":[1,2],"ready_ack":false,"reply_msg":""}`); k != 0 ||
		text != `{"local_gid":"","local_lid":0,"local_nic_path":"","payload":"","peer_nic_path":"","qp_num":[],"reply_msg":""}`+"\n" {
		t.Error(k, text)
	}
}

// TestMooncakeNotify: both ways, and a probe both ways.
func TestMooncakeNotify(t *testing.T) {
	testenv.Leak(t)
	f := startForeign(t, 2, nil)
	e, _ := join(t, 4096, segment.LocalOnly, nil)
	s := openNamed(t, e, f.name())
	if err := e.Notify(t.Context(), s, tideway.Notification{Name: "n1", Body: []byte("done \u00e9")}); err != nil {
		t.Fatal(err)
	}
	if len(f.notices) != 1 || f.notices[0]["name"] != "n1" || f.notices[0]["notify_msg"] != "done \u00e9" {
		t.Error(f.notices)
	}
	if err := e.Notify(t.Context(), s, tideway.Notification{Name: "n", Body: []byte{0xff}}); !errors.Is(err, tideway.ErrInvalid) {
		t.Error(err)
	}
	if took, err := e.Probe(t.Context(), f.name()); err != nil || took <= 0 {
		t.Error(took, err)
	}
	if k, text := ask(t, e.Name(), 2, `{"name":"back","notify_msg":"hello"}`); k != 2 || text != `{"name":"","notify_msg":"success"}`+"\n" {
		t.Error(k, text)
	}
	if n, err := e.Receive(t.Context()); err != nil || n.Name != "back" || string(n.Body) != "hello" || n.From != "" {
		t.Error(n, err)
	}
	if k, text := ask(t, e.Name(), 3, `{}`); k != 3 || text != `{"status":"success"}`+"\n" {
		t.Error(k, text)
	}
	_ = s.Close()
	_ = f.daemon.Close()
	if err := e.Notify(t.Context(), s, tideway.Notification{Name: "n"}); !errors.Is(err, tideway.ErrUnreachable) {
		t.Error(err)
	}
}

// TestMooncakeOff: without Config.Mooncake there is no data port and no way to
// one, and the error says so.
func TestMooncakeOff(t *testing.T) {
	testenv.Leak(t)
	f := startForeign(t, 2, nil)
	e, local := join(t, 4096, segment.ReadWrite, func(cfg *tideway.Config) { cfg.Mooncake = nil })
	if d, _ := f.openTheirs(e.Name()); d.Port != 0 {
		t.Error("a data port is published:", d.Port)
	}
	s := openNamed(t, e, f.name())
	err := e.Do(t.Context(), tideway.Request{Op: tideway.Read, Local: local.Range(0, 64), Remote: s.At(f.base)})
	if !errors.Is(err, tideway.ErrUnsupported) {
		t.Error(err)
	}
}

// TestMooncakeUnregister: memory that is being written from outside is the
// owner's again when Close returns, whatever the peer does.
func TestMooncakeUnregister(t *testing.T) {
	testenv.Leak(t)
	f := startForeign(t, 2, nil)
	e, b := join(t, 1<<20, segment.ReadWrite, nil)
	d, data := f.openTheirs(e.Name())
	c := mustDial(t, data)
	if s, _, err := request(t, c, 0x81, d.Buffers[0].Addr, 64, make([]byte, 64)); s != 0 || err != nil {
		t.Fatal(s, err)
	}
	half := make([]byte, 24+1<<19) // half of the payload, then nothing
	half[2], half[16] = 0x10, 0x81
	for i := range 8 {
		half[8+i] = byte(d.Buffers[0].Addr >> (8 * i))
	}
	for i := range half[24:] {
		half[24+i] = 7
	}
	if _, err := c.Write(half); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, 10*time.Second, func() bool { return b.Bytes()[1<<19-1] == 7 }, "half of the payload has come")
	if err := b.CloseContext(t.Context()); err != nil { // the call that brought it may not have returned yet
		t.Fatal(err)
	}
	if _, err := c.Write(make([]byte, 1<<19)); err != nil {
		t.Fatal(err)
	}
	var status [8]byte
	if _, err := io.ReadFull(c, status[:]); err != nil || status[0] != 1 {
		t.Error(status, err)
	}
}
