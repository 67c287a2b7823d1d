package shm

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"time"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/internal/sys"
	"github.com/tideway-io/tideway/segment"
	"github.com/tideway-io/tideway/transport"
)

// Connect implements transport.Transport. It asks the peer through the engine
// where its socket is, and goes there. errs.Unsupported says that the peer is
// not within reach, and why: on another host, in another network namespace, of
// another user.
func (t *Transport) Connect(ctx context.Context, peer *segment.Desc) (transport.Endpoint, error) {
	if err := t.remembered(peer.Incarnation); err != nil {
		return nil, err
	}
	err := t.usable()
	var e *endpoint
	if err == nil {
		e, err = t.connect(ctx, peer)
	}
	if err == nil {
		if err = t.add(e); err != nil {
			_ = e.Close()
		}
	}
	if err != nil {
		return nil, t.unconnected(ctx, peer, err)
	}
	return e, nil
}

// usable says why no endpoint can be opened any more.
func (t *Transport) usable() error {
	t.out.Lock()
	defer t.out.Unlock()
	switch {
	case t.out.closed:
		return refuse(errs.Closed, "connect", "the transport is closed")
	case t.out.draining:
		return refuse(errs.Draining, "connect", "this engine is shutting down")
	}
	return nil
}

// add keeps an endpoint for Close.
func (t *Transport) add(e *endpoint) error {
	t.out.Lock()
	defer t.out.Unlock()
	if t.out.closed {
		return refuse(errs.Closed, "connect", "the transport is closed")
	}
	t.out.endpoints[e] = struct{}{}
	return nil
}

// unconnected completes the error of Connect, and remembers one that says that
// the peer is out of reach.
func (t *Transport) unconnected(ctx context.Context, peer *segment.Desc, err error) error {
	e := refuse(errs.Of(err), "connect", "")
	e.Segment, e.Peer = string(peer.Name), peer.Addr
	var inner *errs.Error
	if errors.As(err, &inner) {
		e.Detail, e.Err = inner.Detail, inner.Err
	} else {
		e.Err = err
	}
	if e.Detail == "" && e.Err == nil {
		e.Err = err
	}
	if cause := context.Cause(ctx); cause != nil {
		e.Reason, e.Err = errs.Of(cause), errors.Join(cause, e.Err)
	}
	if e.Reason == errs.Unsupported {
		t.remember(peer.Incarnation, e)
	}
	return e
}

// connect dials and greets.
func (t *Transport) connect(ctx context.Context, peer *segment.Desc) (*endpoint, error) {
	reply, err := t.env.Exchange(ctx, peer, []byte{version})
	if err != nil {
		return nil, err
	}
	to, err := parseOffer(reply)
	if err != nil {
		return nil, &errs.Error{Op: "connect", Reason: errs.Unsupported, Detail: "the peer's answer is not one of this version", Err: err}
	}
	ctx, cancel := context.WithTimeoutCause(ctx, helloTimeout, refuse(errs.Unresponsive, "connect", "no welcome within %v", helloTimeout))
	defer cancel()
	c, err := (&net.Dialer{}).DialContext(ctx, network, "@"+to.name)
	if err != nil {
		return nil, undialled(err)
	}
	conn := c.(*net.UnixConn)
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	e, err := t.approach(conn, peer, &to)
	if !stop() && err == nil {
		err = context.Cause(ctx)
		_ = e.Close()
	}
	if err != nil {
		_ = conn.Close()
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		return nil, err
	}
	return e, nil
}

// undialled says what it means that the socket is not there: the peer has just
// said that it is, in its network namespace on its host.
func undialled(err error) error {
	e := refuse(errs.Unsupported, "connect", "the peer's Unix socket cannot be reached: it is on another host, or in another network namespace of this one")
	if errors.Is(err, syscall.EAGAIN) {
		e = refuse(errs.Overloaded, "connect", "too many connections wait to be accepted by the peer")
	}
	e.Err = err
	return e
}

// approach greets the peer at the other end of c.
func (t *Transport) approach(c *net.UnixConn, peer *segment.Desc, to *offer) (*endpoint, error) {
	p, err := sys.NewPackets(c)
	if err != nil {
		return nil, err
	}
	pid, uid, err := p.Peer()
	if err != nil {
		return nil, err
	}
	if uid != os.Geteuid() {
		return nil, refuse(errs.Unsupported, "connect", "the peer runs as user %d, this process as user %d: memory is shared only within one user", uid, os.Geteuid())
	}
	desk, fd, err := newDesk()
	if err != nil {
		return nil, &errs.Error{Op: "connect", Reason: errs.Overloaded, Detail: "memory to share with the peer", Err: err}
	}
	e := newEndpoint(t, p, pid, desk)
	m := message{head: head{kind: kindHello, code: version}, secret: to.secret, from: t.env.Self.Incarnation, to: peer.Incarnation, life: t.life.proof}
	err = p.WaitSend(m.append(nil), fd)
	closeFD(fd)
	if err == nil {
		err = e.welcome(peer.Incarnation)
	}
	if err != nil {
		desk.close()
		return nil, lost(err)
	}
	e.start()
	return e, nil
}

// lost makes an error of a connection one of ours.
func lost(err error) error {
	var ours *errs.Error
	if errors.As(err, &ours) {
		return err
	}
	return &errs.Error{Op: "connect", Reason: errs.LaneLost, Detail: "the peer hung up during the handshake", Err: err}
}

// welcome reads the peer's welcome and opens what came with it.
func (e *endpoint) welcome(want segment.Incarnation) error {
	b := make([]byte, maxMessage)
	n, fd, err := e.link.p.Receive(b)
	if err != nil {
		return err
	}
	defer closeFD(fd)
	var m message
	switch err := m.parse(b[:n]); {
	case err != nil:
		return refuse(errs.Unsupported, "connect", "the peer answers with %v", err)
	case m.kind != kindWelcome:
		return refuse(errs.Unsupported, "connect", "the peer answers with a message of kind %d", m.kind)
	case m.code != errs.OK:
		return refuse(m.code, "connect", "the peer says: %s", m.text)
	case m.from != want:
		return refuse(errs.Restarted, "connect", "incarnation %v answers, want %v: open the segment again", m.from, want)
	}
	if e.table, err = openView(fd, want); err != nil {
		return refuse(errs.Unsupported, "connect", "the peer's table: %v", err)
	}
	e.life = m.life
	if m.text != "" {
		e.noPull = fmt.Errorf("the peer cannot read this process's memory: %s (%s)", m.text, attachHint)
	}
	if err := attachable(e.pid, &e.life); err != nil {
		e.noRead = fmt.Errorf("the peer's memory cannot be read: %w (%s)", err, attachHint)
	}
	if e.noPull != nil || e.noRead != nil {
		e.t.log.Info("same-host peer: only memory that the engine allocated can be shared", "pid", e.pid, "reason", errors.Join(e.noRead, e.noPull))
	}
	return nil
}

// attachHint is what may be in the way of cross-memory attach.
const attachHint = "kernel.yama.ptrace_scope=0 or CAP_SYS_PTRACE, one process namespace, and a seccomp filter that lets process_vm_readv pass would allow it"
