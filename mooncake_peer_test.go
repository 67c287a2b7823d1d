package tideway_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// foreign is an engine of Mooncake's kind, written from the description of its
// wire and sharing no code with this module: one daemon port, one data port, one
// buffer at an address of its own invention.
type foreign struct {
	testing.TB
	daemon, data net.Listener
	version      int
	base         uint64
	once         bool // closes a data connection after each request, as peers do that do not pool
	hush         bool // answers nothing on the data port
	replay       *replayer
	protocol     string
	wg           sync.WaitGroup

	mu      sync.Mutex
	mem     []byte
	conns   map[net.Conn]bool
	notices []map[string]string
	asked   []string // what metadata requests carried
	served  []string // headers on the data port
	dials   int
}

// startForeign starts one; it ends with the test.
func startForeign(t testing.TB, version int, set func(*foreign)) *foreign {
	t.Helper()
	f := &foreign{TB: t, version: version, protocol: `"tcp"`, base: 0x100000000000, mem: make([]byte, 4<<20), conns: map[net.Conn]bool{}}
	if set != nil {
		set(f)
	}
	for i := range f.mem[:2<<20] {
		f.mem[i] = byte(7*i + 3)
	}
	f.daemon, f.data = f.open(f.answer), f.open(f.transfer)
	t.Cleanup(func() {
		f.mu.Lock()
		_, _ = f.daemon.Close(), f.data.Close()
		for c := range f.conns {
			_ = c.Close()
		}
		f.mu.Unlock()
		f.wg.Wait()
	})
	return f
}

func (f *foreign) open(serve func(net.Conn)) net.Listener {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		f.Fatal(err)
	}
	f.wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			f.mu.Lock()
			f.conns[c] = true
			f.mu.Unlock()
			f.wg.Go(func() {
				serve(c)
				_ = c.Close()
				f.mu.Lock()
				delete(f.conns, c)
				f.mu.Unlock()
			})
		}
	})
	return l
}

// restart gives it another data port, as a peer that restarts has, and less
// memory.
func (f *foreign) restart() {
	_ = f.data.Close()
	f.mu.Lock()
	for c := range f.conns {
		_ = c.Close()
	}
	f.mu.Unlock()
	data := f.open(f.transfer)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.data, f.mem = data, f.mem[:1<<20]
}

func (f *foreign) name() string { return f.daemon.Addr().String() }

// describe is the descriptor, keys sorted, no spaces.
func (f *foreign) describe() string {
	return fmt.Sprintf(`{"buffers":[{"addr":%d,"length":%d,"name":"%s"}],"name":"%s","protocol":%s,"tcp_data_port":%d,"tcp_proto_version":%d,"timestamp":"2026-08-01 12:00:00.000001"}`,
		f.base, len(f.mem), f.name(), f.name(), f.protocol, f.data.Addr().(*net.TCPAddr).Port, f.version)
}

// frame is u64 length, u8 kind, JSON and a line feed.
func frame(kind byte, text string) []byte {
	p := binary.LittleEndian.AppendUint64(nil, uint64(len(text)+2))
	return append(append(p, kind), text+"\n"...)
}

func readFrame(c net.Conn) (kind byte, text string, err error) {
	var n [8]byte
	if _, err := io.ReadFull(c, n[:]); err != nil {
		return 0, "", err
	}
	p := make([]byte, binary.LittleEndian.Uint64(n[:]))
	if _, err := io.ReadFull(c, p); err != nil {
		return 0, "", err
	}
	return p[0], string(p[1:]), nil
}

// answer serves the daemon's port: one request, and the peer closes.
func (f *foreign) answer(c net.Conn) {
	kind, text, err := readFrame(c)
	if err != nil {
		return
	}
	if f.replay != nil {
		f.replay.heard(frame(kind, strings.TrimSuffix(text, "\n")))
	}
	var object map[string]any
	if json.Unmarshal([]byte(text), &object) != nil {
		return // a real one dies of this
	}
	f.mu.Lock()
	reply := ""
	switch kind {
	case 1:
		f.asked = append(f.asked, text)
		reply = f.describe()
	case 2:
		f.notices = append(f.notices, map[string]string{"name": fmt.Sprint(object["name"]), "notify_msg": fmt.Sprint(object["notify_msg"])})
		reply = `{"name":"","notify_msg":"success"}`
	case 3:
		reply = `{"status":"success"}`
	}
	f.mu.Unlock()
	for _, part := range [][]byte{frame(kind, reply)[:8], {kind}, []byte(reply + "\n")} { // three writes, as real ones do
		_, _ = c.Write(part)
	}
	_ = c.(*net.TCPConn).CloseWrite()
	_, _ = io.Copy(io.Discard, c)
}

// transfer serves the data port: a request after the other.
func (f *foreign) transfer(c net.Conn) {
	f.mu.Lock()
	f.dials++
	f.mu.Unlock()
	for f.replay != nil && f.replay.request(c) {
	}
	for f.replay == nil && f.one(c) && !f.once {
	}
}

func (f *foreign) one(c net.Conn) bool {
	var h [24]byte
	if _, err := io.ReadFull(c, h[:]); err != nil {
		return false
	}
	size, addr, op := binary.LittleEndian.Uint64(h[:]), binary.LittleEndian.Uint64(h[8:]), h[16]
	f.mu.Lock()
	f.served = append(f.served, fmt.Sprintf("%#x %d", op, size))
	f.mu.Unlock()
	if f.hush {
		_, _ = io.Copy(io.Discard, c)
		return false
	}
	v2 := op&0x80 != 0 && f.version >= 2
	if size == 0 || addr < f.base || addr-f.base > uint64(len(f.mem)) || size > uint64(len(f.mem))-(addr-f.base) {
		if v2 {
			_, _ = c.Write([]byte{1, 0, 0, 0, 0x56, 0x54, 0x43, 0x4d})
		}
		return false
	}
	ok := []byte{0, 0, 0, 0, 0x56, 0x54, 0x43, 0x4d}
	at := addr - f.base
	if op&0x7f == 1 && (v2 || op == 1) {
		p := make([]byte, size)
		if _, err := io.ReadFull(c, p); err != nil {
			return false
		}
		f.mu.Lock()
		copy(f.mem[at:], p)
		f.mu.Unlock()
		if v2 {
			_, _ = c.Write(ok)
		}
		return true
	}
	f.mu.Lock()
	p := bytes.Clone(f.mem[at : at+size])
	f.mu.Unlock()
	if v2 {
		p = append(ok, p...)
	}
	_, err := c.Write(p)
	return err == nil
}

// look returns a copy of a range.
func (f *foreign) look(off, n int) []byte {
	f.mu.Lock()
	defer f.mu.Unlock()
	return bytes.Clone(f.mem[off : off+n])
}

// ask makes one call to an engine's daemon port.
func ask(t testing.TB, addr string, kind byte, text string) (byte, string) {
	t.Helper()
	c := mustDial(t, addr)
	if _, err := c.Write(frame(kind, text)); err != nil {
		t.Fatal(err)
	}
	k, answer, err := readFrame(c)
	if err != nil {
		t.Fatal(err)
	}
	return k, answer
}

func mustDial(t testing.TB, addr string) net.Conn {
	t.Helper()
	var d net.Dialer
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	c, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	return c
}

// theirDesc is what a Mooncake engine keeps of a descriptor.
type theirDesc struct {
	Name     string `json:"name"`
	Protocol string `json:"protocol"`
	Port     int    `json:"tcp_data_port"`
	Version  int    `json:"tcp_proto_version"`
	Buffers  []struct {
		Addr, Length uint64
		Name         string
	} `json:"buffers"`
}

// openTheirs asks for an engine's descriptor as a Mooncake engine does, and returns
// where its data port is.
func (f *foreign) openTheirs(addr string) (theirDesc, string) {
	f.Helper()
	kind, text := ask(f, addr, 1, f.describe())
	var d theirDesc
	if err := json.Unmarshal([]byte(text), &d); err != nil || kind != 1 {
		f.Fatalf("kind %d, %v: %s", kind, err, text)
	}
	host, _, err := net.SplitHostPort(d.Name)
	if err != nil {
		f.Fatal(err)
	}
	return d, net.JoinHostPort(host, strconv.Itoa(d.Port))
}

// request sends one request on c and returns the status, of version 2, and the
// payload of a READ.
func request(t testing.TB, c net.Conn, op byte, addr, size uint64, payload []byte) (status uint64, data []byte, err error) {
	t.Helper()
	p := binary.LittleEndian.AppendUint64(nil, size)
	p = binary.LittleEndian.AppendUint64(p, addr)
	p = append(p, op, 1, 2, 3, 4, 5, 6, 7) // padding is whatever the compiler left there
	if _, err := c.Write(append(p, payload...)); err != nil {
		return 0, nil, err
	}
	if op&0x80 != 0 {
		var s [8]byte
		if _, err := io.ReadFull(c, s[:]); err != nil {
			return 0, nil, err
		}
		if status = binary.LittleEndian.Uint64(s[:]); status>>32 != 0x4d435456 {
			t.Fatalf("status %#x", status)
		}
	}
	if op&0x7f == 1 || status&0xffffffff != 0 {
		return status & 0xffffffff, nil, nil
	}
	data = make([]byte, size)
	_, err = io.ReadFull(c, data)
	return 0, data, err
}
