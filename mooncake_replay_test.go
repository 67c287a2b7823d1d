package tideway_test

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tideway-io/tideway"
	"github.com/tideway-io/tideway/internal/testenv"
	"github.com/tideway-io/tideway/segment"
)

// turn is a run of bytes in one direction of one connection, as two real
// Mooncake processes exchanged it.
type turn struct {
	stream int
	role   string // handshake or data
	client bool   // from the client
	at     float64
	data   []byte
}

var (
	streamLine = regexp.MustCompile(`^STREAM (\d+)  role=(\w+)`)
	turnLine   = regexp.MustCompile(`^-- turn \d+ (c2s|s2c) .*?(\d+) bytes  t=\+([0-9.]+)s`)
	hexLine    = regexp.MustCompile(`^    ([0-9a-f]{8})  ((?:[0-9a-f]{2} )+)`)
)

// transcript reads the turns of a scenario in the order of time. A payload that
// the text cuts short goes on as it began: the patterns are arithmetic.
func transcript(t *testing.T, name string) []turn {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	var turns []turn
	stream, role, length := 0, "", []int(nil)
	for _, line := range strings.Split(string(text), "\n") {
		if m := streamLine.FindStringSubmatch(line); m != nil {
			stream, _ = strconv.Atoi(m[1])
			role = m[2]
		} else if m := turnLine.FindStringSubmatch(line); m != nil {
			n, _ := strconv.Atoi(m[2])
			at, _ := strconv.ParseFloat(m[3], 64)
			turns, length = append(turns, turn{stream, role, m[1] == "c2s", at, nil}), append(length, n)
		} else if m := hexLine.FindStringSubmatch(line); m != nil {
			p, err := hex.DecodeString(strings.ReplaceAll(strings.TrimSpace(m[2]), " ", ""))
			if err != nil {
				t.Fatal(err)
			}
			last := &turns[len(turns)-1]
			last.data = append(last.data, p...)
		}
	}
	for i := range turns {
		for p := &turns[i].data; len(*p) < length[i]; {
			*p = append(*p, 2*(*p)[len(*p)-1]-(*p)[len(*p)-2])
		}
	}
	slices.SortStableFunc(turns, func(a, b turn) int {
		if a.at < b.at {
			return -1
		}
		return 1
	})
	return turns
}

// exchangeOf is one request of a scenario and what answered it.
type exchangeOf struct {
	turn
	answer []byte // nil: none
	late   []byte // what the client sent although it was refused
}

// exchanges pairs up the turns.
func exchanges(turns []turn) (out []exchangeOf) {
	for i, q := range turns {
		if !q.client || i > 0 && slices.ContainsFunc(out, func(x exchangeOf) bool { return x.stream == q.stream && x.late != nil }) {
			continue
		}
		x := exchangeOf{turn: q}
		for _, r := range turns[i+1:] {
			if r.stream != q.stream {
				continue
			}
			if r.client && x.answer != nil && q.role == "data" && q.data[16]&0x7f == 1 && len(q.data) == 24 {
				x.late = r.data
			}
			if r.client || x.answer != nil {
				break
			}
			x.answer = r.data
		}
		out = append(out, x)
	}
	return out
}

// theirBase is where their target's buffer was.
const theirBase = 0x100000000000

func scenarios(t *testing.T) []string {
	files, err := filepath.Glob("testdata/mooncake/classic-*.txt")
	if err != nil || len(files) != 8 {
		t.Fatal(files, err)
	}
	return files
}

var (
	stampText = regexp.MustCompile(`"timestamp":"[^"]*"`)
	portText  = regexp.MustCompile(`"tcp_data_port":\d+`)
	nameText  = regexp.MustCompile(`"name":"[^"]*"`)
	addrText  = regexp.MustCompile(`"addr":\d+`)
	ourMember = regexp.MustCompile(`"tideway":.*,"timestamp"`)
)

// plain takes out of a descriptor what cannot be equal: names, ports, addresses,
// times and our own member.
func plain(frame []byte) string {
	s := ourMember.ReplaceAllString(string(frame[9:]), `"timestamp"`)
	for re, with := range map[*regexp.Regexp]string{stampText: `"timestamp":""`, portText: `"tcp_data_port":0`, nameText: `"name":""`, addrText: `"addr":0`} {
		s = re.ReplaceAllString(s, with)
	}
	return fmt.Sprintf("kind %d %s", frame[8], s)
}

// TestReplayTarget: what real initiators sent is answered, byte for byte, as their
// target answered it.
func TestReplayTarget(t *testing.T) {
	for _, file := range scenarios(t) {
		t.Run(filepath.Base(file), func(t *testing.T) {
			testenv.Leak(t)
			e, b := join(t, 4<<20, segment.ReadWrite, nil)
			for i := range b.Bytes()[:2<<20] {
				b.Bytes()[i] = byte(7*i + 3)
			}
			_, data := startForeign(t, 2, nil).openTheirs(e.Name())
			conns := map[int]net.Conn{}
			for i, x := range exchanges(transcript(t, file)) {
				c := conns[x.stream]
				if c == nil {
					c = mustDial(t, map[string]string{"handshake": e.Name(), "data": data}[x.role])
					conns[x.stream] = c
				}
				replayToTarget(t, fmt.Sprintf("exchange %d", i), c, b, x)
			}
		})
	}
}

func replayToTarget(t *testing.T, what string, c net.Conn, b *tideway.Buffer, x exchangeOf) {
	t.Helper()
	q := bytes.Clone(x.data)
	if x.role == "data" {
		at := binary.LittleEndian.Uint64(q[8:]) - theirBase
		binary.LittleEndian.PutUint64(q[8:], b.Addr()+at)
		defer func() { // version 1 does not say when a WRITE is there
			if n := uint64(len(q) - 24); x.answer == nil && n > 0 && at+n <= b.Len() {
				testenv.Eventually(t, 10*time.Second, func() bool { return bytes.Equal(b.Bytes()[at:at+n], q[24:]) }, what+" is applied")
			}
		}()
	}
	if _, err := c.Write(q); err != nil {
		t.Fatal(what, err)
	}
	switch {
	case x.role == "handshake":
		kind, text, err := readFrame(c)
		got := append(append(make([]byte, 8), kind), text...)
		if err != nil || plain(got) != plain(x.answer) {
			t.Errorf("%s: answered %s, want %s, %v", what, plain(got), plain(x.answer), err)
		}
	case x.answer != nil:
		got := make([]byte, len(x.answer))
		if _, err := io.ReadFull(c, got); err != nil || !bytes.Equal(got, x.answer) {
			t.Errorf("%s: answered %d bytes, %.32x, want %.32x, %v", what, len(got), got, x.answer, err)
		}
		if x.late != nil {
			_, _ = c.Write(x.late)
		}
		if x.answer[0] == 1 && len(x.answer) == 8 {
			if n, err := c.Read(make([]byte, 1)); n != 0 || err == nil {
				t.Errorf("%s: the connection goes on after a refusal", what)
			}
		}
	case len(q) == 24: // a READ of version 1 that was refused
		if n, err := c.Read(make([]byte, 1)); n != 0 || err == nil {
			t.Errorf("%s: the connection goes on after a refusal", what)
		}
	}
}

// replayer is their target, which expects what their initiator sent.
type replayer struct {
	*foreign
	next sync.Mutex
	data []exchangeOf // still expected on the data port
	hand []exchangeOf // and on the daemon's
}

// TestReplayInitiator: ours sends what real initiators sent, byte for byte, and
// understands what was answered.
func TestReplayInitiator(t *testing.T) {
	for _, file := range scenarios(t) {
		t.Run(filepath.Base(file), func(t *testing.T) {
			testenv.Leak(t)
			r := &replayer{}
			var todo []exchangeOf
			for _, x := range exchanges(transcript(t, file)) {
				switch {
				case x.role == "data":
					r.data = append(r.data, x)
				case x.data[8] == 0: // a connection request, which we have none to make
					continue
				default:
					r.hand = append(r.hand, x)
				}
				todo = append(todo, x)
			}
			r.foreign = startForeign(t, 2, nil)
			r.foreign.mem = make([]byte, 4<<20+4096) // so that what is refused is asked for
			r.foreign.replay = r
			e, local := join(t, 4<<20, segment.ReadWrite, func(c *tideway.Config) {
				c.Retries, c.Mooncake.Version1 = -1, strings.Contains(file, "-v1")
			})
			s := openNamed(t, e, r.name())
			for i, x := range todo {
				r.play(e, s, local, fmt.Sprintf("exchange %d", i), x)
			}
			if left := len(r.data) + len(r.hand); left > 0 {
				t.Errorf("%d exchanges did not take place", left)
			}
		})
	}
}

// play has our engine do what makes exchange x.
func (r *replayer) play(e *tideway.Engine, s *tideway.Segment, local *tideway.Buffer, what string, x exchangeOf) {
	ctx := r.Context()
	switch {
	case x.role == "handshake" && x.data[8] == 2:
		var n map[string]string
		if err := json.Unmarshal(x.data[9:], &n); err != nil {
			r.Fatal(what, err)
		}
		if err := e.Notify(ctx, s, tideway.Notification{Name: n["name"], Body: []byte(n["notify_msg"])}); err != nil {
			r.Error(what, err)
		}
	case x.role == "handshake" && x.data[8] == 3:
		if _, err := e.Probe(ctx, string(s.Name())); err != nil {
			r.Error(what, err)
		}
	case x.role == "data":
		size, addr := binary.LittleEndian.Uint64(x.data), binary.LittleEndian.Uint64(x.data[8:])
		req := tideway.Request{Op: tideway.Read, Local: local.Range(0, size), Remote: s.At(addr)}
		if x.data[16]&0x7f == 1 {
			req.Op = tideway.Write
			copy(local.Bytes(), append(bytes.Clone(x.data[24:]), x.late...))
		}
		err := e.Do(ctx, req)
		refused := addr+size > theirBase+4<<20
		want := tideway.ErrStale
		if x.data[16]&0x80 == 0 {
			want = tideway.ErrUnreachable // version 1 only closes
		}
		if refused != (err != nil) || refused && !errors.Is(err, want) {
			r.Error(what, err)
		}
		if got := x.answer[max(0, len(x.answer)-int(size)):]; req.Op == tideway.Read && !refused && !bytes.Equal(local.Bytes()[:size], got) {
			r.Error(what, "other bytes have come than were sent")
		}
	}
}

// request serves one request on the data port: false when the connection ends.
func (r *replayer) request(c net.Conn) bool {
	var h [24]byte
	if _, err := io.ReadFull(c, h[:]); err != nil {
		return false
	}
	r.next.Lock()
	defer r.next.Unlock()
	if len(r.data) == 0 {
		r.Errorf("one request too many: %x", h)
		return false
	}
	x := r.data[0]
	r.data = r.data[1:]
	clear(x.data[17:24]) // their compiler's padding
	got := append(h[:], make([]byte, len(x.data)-24)...)
	if _, err := io.ReadFull(c, got[24:]); err != nil || !bytes.Equal(got, x.data) {
		r.Errorf("sent %.40x, want %.40x, %v", got, x.data, err)
	}
	_, _ = c.Write(x.answer)
	v2, write := h[16]&0x80 != 0, h[16]&0x7f == 1
	if v2 && len(x.answer) == 8 && x.answer[0] == 1 || !v2 && x.answer == nil && !write {
		return false
	}
	size, addr := binary.LittleEndian.Uint64(h[:]), binary.LittleEndian.Uint64(h[8:])
	if addr+size > theirBase+4<<20 {
		return false
	}
	if !v2 && write { // ours asks for a byte to learn that it is there
		var ack [24]byte
		if _, err := io.ReadFull(c, ack[:]); err != nil || binary.LittleEndian.Uint64(ack[:]) != 1 || ack[16] != 0 || !bytes.Equal(ack[8:16], h[8:16]) {
			r.Errorf("behind a WRITE of version 1: %x, %v", ack, err)
		}
		_, _ = c.Write(got[24:25])
	}
	return true
}

// heard compares what came to the daemon's port.
func (r *replayer) heard(frame []byte) {
	r.next.Lock()
	defer r.next.Unlock()
	for i, x := range r.hand {
		if x.data[8] == frame[8] {
			r.hand = slices.Delete(r.hand, i, i+1)
			if plain(frame) != plain(x.data) || frame[8] != 1 && !bytes.Equal(frame, x.data) {
				r.Errorf("sent %s, want %s", plain(frame), plain(x.data))
			}
			return
		}
	}
	if frame[8] != 1 { // descriptors may be asked for more often
		r.Errorf("nobody expected %q", frame)
	}
}
