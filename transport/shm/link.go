package shm

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/internal/mem"
	"github.com/tideway-io/tideway/internal/sys"
	"github.com/tideway-io/tideway/segment"
)

const (
	network    = "unixpacket"
	namePrefix = "tideway-shm-"
	// helloTimeout bounds a handshake, on both sides.
	helloTimeout = 5 * time.Second
	// maxUnsent bounds the messages that wait for a peer to read. An honest one
	// never has that many outstanding.
	maxUnsent = 4 << 10
)

// offer is what the owner of a socket tells those whom the engine lets ask: the
// socket's name in the abstract namespace, and what to say there.
type offer struct {
	name   string
	secret [secretSize]byte
}

// listen opens a socket under a name that nobody can guess, in the abstract
// namespace: no file, nothing left behind, and not visible from other hosts or
// network namespaces.
func listen() (*net.UnixListener, string, error) {
	secret := newSecret()
	name := namePrefix + hex.EncodeToString(secret[:])
	l, err := net.ListenUnix(network, &net.UnixAddr{Net: network, Name: "@" + name})
	return l, name, err
}

func newSecret() (s [secretSize]byte) {
	_, _ = rand.Read(s[:]) // never fails
	return s
}

// answer tells a peer that the engine has let in where to connect.
func (t *Transport) answer(_ context.Context, _ segment.Incarnation, body []byte) ([]byte, error) {
	if len(body) != 1 || body[0] != version {
		return nil, refuse(errs.Unsupported, "answer", "version %x, this engine speaks %d", body, version)
	}
	return append(append([]byte{version}, t.offer.secret[:]...), t.offer.name...), nil
}

// parseOffer decodes an answer.
func parseOffer(b []byte) (o offer, err error) {
	if len(b) <= 1+secretSize || b[0] != version {
		return o, fmt.Errorf("an offer of %d bytes", len(b))
	}
	copy(o.secret[:], b[1:])
	o.name = string(b[1+secretSize:])
	if digits, ok := strings.CutPrefix(o.name, namePrefix); !ok || len(digits) != 2*secretSize || strings.Trim(digits, "0123456789abcdef") != "" {
		return o, fmt.Errorf("an offer of a socket called %.64q", o.name)
	}
	return o, nil
}

// life is memory that shows which process this is: who reads its nonce at its
// address has read this process, in this life of the transport.
type life struct {
	proof
	bytes []byte
}

func newLife() *life {
	nonce := newSecret()
	l := &life{bytes: nonce[:]}
	l.nonce, l.addr = nonce, uint64(mem.Addr(l.bytes))
	return l
}

// end makes the proof fail.
func (l *life) end() { clear(l.bytes) }

// link is an established connection with messages both ways.
type link struct {
	p       *sys.Packets
	sending sync.WaitGroup // the goroutine that waits for room
	mu      struct {
		sync.Mutex
		dead    bool
		waiting bool // that goroutine runs
		unsent  []unsent
	}
}

// unsent is a message that waits, with a descriptor to send and then to close
// unless that is -1.
type unsent struct {
	b  []byte
	fd int
}

// send sends a message, now or as soon as the peer has read enough, without
// waiting. It takes over fd. What cannot be sent is dropped with the link:
// whoever receives on it learns that.
func (l *link) send(b []byte, fd int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.dead {
		closeFD(fd)
		return
	}
	if !l.mu.waiting {
		switch err := l.p.TrySend(b, fd); err {
		case nil:
			closeFD(fd)
			return
		case sys.ErrAgain:
			l.mu.waiting = true
			l.sending.Go(l.drain)
		default:
			l.fail()
		}
	}
	if l.mu.dead || len(l.mu.unsent) >= maxUnsent {
		l.fail()
		closeFD(fd)
		return
	}
	l.mu.unsent = append(l.mu.unsent, unsent{append([]byte(nil), b...), fd})
}

func closeFD(fd int) {
	if fd >= 0 {
		_ = sys.Close(fd) // nothing to do about it
	}
}

// drain sends what waits and ends when nothing does.
func (l *link) drain() {
	for {
		l.mu.Lock()
		if len(l.mu.unsent) == 0 || l.mu.dead {
			l.mu.waiting, l.mu.unsent = false, nil
			l.mu.Unlock()
			return
		}
		next := l.mu.unsent[0]
		l.mu.unsent[0] = unsent{}
		l.mu.unsent = l.mu.unsent[1:]
		l.mu.Unlock()
		err := l.p.WaitSend(next.b, next.fd)
		closeFD(next.fd)
		if err != nil {
			l.end()
		}
	}
}

// fail ends the link; the lock is held.
func (l *link) fail() {
	if l.mu.dead {
		return
	}
	l.mu.dead = true
	for _, u := range l.mu.unsent {
		closeFD(u.fd)
	}
	l.mu.unsent = nil
	_ = l.p.Close() // wakes who receives
}

// end ends the link. Who receives on it is told by an error.
func (l *link) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.fail()
}

// close ends the link and waits for its sender.
func (l *link) close() {
	l.end()
	l.sending.Wait()
}
