package sys

import (
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/tideway-io/tideway/internal/testenv"
)

func TestMemfd(t *testing.T) {
	testenv.Leak(t)
	fd, err := NewMemfd("test", 8192, SealShrink)
	if err != nil {
		t.Fatal(err)
	}
	defer Close(fd)
	if size, seals, err := Memfd(fd); size != 8192 || seals&SealShrink == 0 || seals&SealGrow != 0 || err != nil {
		t.Errorf("%d bytes, seals %#x, %v", size, seals, err)
	}
	if err := unix.Ftruncate(fd, 4096); !errors.Is(err, unix.EPERM) {
		t.Errorf("shrink: %v", err)
	}
	if err := unix.Ftruncate(fd, 1<<20); err != nil {
		t.Errorf("grow, which is not sealed: %v", err)
	}
	again, err := Dup(fd)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(Seal(again, SealSeals), Close(again)); err != nil {
		t.Error(err)
	}
	if err := Seal(fd, SealGrow); !errors.Is(err, unix.EPERM) {
		t.Errorf("a seal after the last: %v", err)
	}
	for _, fd := range []int{fd, again} {
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
		if err == nil && flags&unix.FD_CLOEXEC == 0 {
			t.Error("it is inherited by programs")
		}
	}
	if _, err := NewMemfd("test", -1, 0); err == nil {
		t.Error("a negative size")
	}
}

// TestMemfdIsOne: what is no memfd is told apart.
func TestMemfdIsOne(t *testing.T) {
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	file, err := os.Create(filepath.Join(t.TempDir(), "f"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	for name, fd := range map[string]int{"/dev/null": int(null.Fd()), "a file": int(file.Fd()), "a pipe": int(r.Fd()), "nothing": 1 << 20} {
		if size, seals, err := Memfd(fd); err == nil && seals&SealShrink != 0 {
			t.Errorf("%s is a memfd of %d bytes with seals %#x", name, size, seals)
		}
	}
}

func TestRanges(t *testing.T) {
	source, pieces := []byte("0123456789"), [3][]byte{make([]byte, 3), make([]byte, 2), make([]byte, 1)}
	addr := uint64(uintptr(unsafe.Pointer(&source[0]))) // sound: only a number
	var r Ranges
	for range 2 {
		r.Reset()
		r.Add(pieces[0], addr+7)
		r.Add(pieces[1], addr)
		if n, err := r.Read(os.Getpid()); n != 5 || err != nil || r.Len() != 2 || string(pieces[0])+string(pieces[1]) != "78901" {
			t.Errorf("read %d bytes %q %q, %v", n, pieces[0], pieces[1], err)
		}
	}
	r.Add(pieces[2], 1)
	if n, err := r.Read(os.Getpid()); n != 5 || err != nil {
		t.Errorf("with a piece that is not there: %d bytes, %v; want those before it", n, err)
	}
	r.Reset()
	r.Add(pieces[2], 1)
	if n, err := r.Read(os.Getpid()); n != 0 || !errors.Is(err, unix.EFAULT) {
		t.Errorf("a piece that is not there: %d bytes, %v", n, err)
	}
	cmd := exec.Command("true")
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	r.Reset()
	r.Add(pieces[2], addr)
	if _, err := r.Read(cmd.Process.Pid); !errors.Is(err, unix.ESRCH) {
		t.Errorf("a process that has ended: %v", err)
	}
	runtime.KeepAlive(source)
}

// packets returns two connected sockets.
func packets(t *testing.T) (a, b *Packets) {
	t.Helper()
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Net: "unixpacket"}) // a name that the kernel chooses
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ends := make([]*Packets, 2)
	c, err := net.DialUnix("unixpacket", nil, l.Addr().(*net.UnixAddr))
	if err != nil {
		t.Fatal(err)
	}
	d, err := l.AcceptUnix()
	if err != nil {
		t.Fatal(err)
	}
	for i, conn := range []*net.UnixConn{c, d} {
		if ends[i], err = NewPackets(conn); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = ends[i].Close() })
	}
	return ends[0], ends[1]
}

func TestPackets(t *testing.T) {
	testenv.Leak(t)
	a, b := packets(t)
	pid, uid, err := a.Peer()
	if pid != os.Getpid() || uid != os.Geteuid() || err != nil {
		t.Errorf("the peer is process %d of user %d, %v", pid, uid, err)
	}
	fd, err := NewMemfd("sent", 12288, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer Close(fd)
	for _, m := range []struct {
		text string
		fd   int
	}{{"one", -1}, {"two and a descriptor", fd}, {"three", -1}} {
		if err := a.TrySend([]byte(m.text), m.fd); err != nil {
			t.Fatal(err)
		}
	}
	buf := make([]byte, 64)
	for _, want := range []string{"one", "two and a descriptor", "three"} {
		n, got, err := b.Receive(buf)
		if string(buf[:n]) != want || err != nil || (got >= 0) != (n > 5) {
			t.Errorf("%q with descriptor %d, %v; want %q", buf[:n], got, err, want)
		}
		if got >= 0 {
			if size, _, err := Memfd(got); size != 12288 || err != nil {
				t.Errorf("the descriptor is of %d bytes, %v", size, err)
			}
			_ = Close(got)
		}
	}
	// More descriptors than there is room for are closed, and so is one that
	// comes with a message that is too long.
	if err := a.raw.Control(func(s uintptr) {
		err = unix.Sendmsg(int(s), []byte("many"), unix.UnixRights(fd, fd, fd), nil, 0)
	}); err != nil {
		t.Fatal(err)
	}
	if n, got, err := b.Receive(buf); n != 4 || got < 0 || err != nil {
		t.Errorf("%d bytes, descriptor %d, %v", n, got, err)
	} else {
		_ = Close(got)
	}
	if err := a.TrySend(make([]byte, 65), fd); err != nil {
		t.Fatal(err)
	}
	if _, got, err := b.Receive(buf); err != ErrLong || got != -1 {
		t.Errorf("a message that is too long: descriptor %d, %v", got, err)
	}
	_ = a.Close()
	if _, _, err := b.Receive(buf); err != io.EOF {
		t.Errorf("after the end: %v", err)
	}
	if err := b.TrySend([]byte("x"), -1); !errors.Is(err, unix.EPIPE) {
		t.Errorf("send to nobody: %v", err)
	}
	_ = b.Close()
	for _, err := range []error{b.TrySend(buf, -1), b.WaitSend(buf, -1)} {
		if !errors.Is(err, net.ErrClosed) {
			t.Errorf("send on a closed socket: %v", err)
		}
	}
	if _, _, err := b.Receive(buf); !errors.Is(err, net.ErrClosed) {
		t.Errorf("receive on a closed socket: %v", err)
	}
}

// TestPacketsWait fills a socket: who does not want to wait is told, who waits
// goes on when there is room, or when the socket closes.
func TestPacketsWait(t *testing.T) {
	a, b := packets(t)
	m, n := []byte(strings.Repeat("x", 4000)), 0
	for ; a.TrySend(m, -1) == nil; n++ {
	}
	if err := a.TrySend(m, -1); err != ErrAgain {
		t.Fatalf("after %d messages: %v", n, err)
	}
	sent := make(chan error)
	go func() { sent <- a.WaitSend(m, -1) }()
	buf := make([]byte, 4096)
	for i := range n + 1 { // the last one is the one that waited
		if _, _, err := b.Receive(buf); err != nil {
			t.Fatalf("message %d of %d: %v", i, n+1, err)
		}
	}
	if err := <-sent; err != nil {
		t.Error(err)
	}
	for a.TrySend(m, -1) == nil {
	}
	go func() { sent <- a.WaitSend(m, -1) }()
	_ = a.Close()
	if err := <-sent; !errors.Is(err, net.ErrClosed) {
		t.Errorf("closed while it waits: %v", err)
	}
}

func TestPacketsAllocateNothing(t *testing.T) {
	a, b := packets(t)
	m, buf := []byte("message"), make([]byte, 64)
	testenv.MaxAllocs(t, 0, func() {
		if err := a.TrySend(m, -1); err != nil {
			t.Fatal(err)
		}
		if _, _, err := b.Receive(buf); err != nil {
			t.Fatal(err)
		}
	})
}
