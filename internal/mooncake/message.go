package mooncake

import (
	"math"

	"github.com/tideway-io/tideway/errs"
)

// Notice is a notification, as a request and as the answer to one.
type Notice struct {
	Name string
	Text string
}

// Append appends the JSON of n.
func (n Notice) Append(p []byte) []byte {
	p = appendString(append(p, `{"name":`...), n.Name)
	p = appendString(append(p, `,"notify_msg":`...), n.Text)
	return append(p, '}')
}

// ParseNotice reads the JSON of a notification. Its root must be an object.
func ParseNotice(p []byte) (Notice, error) {
	var n Notice
	c := cursor{p: p}
	c.root(func(key string) {
		switch key {
		case "name":
			n.Name = c.str()
		case "notify_msg":
			n.Text = c.str()
		default:
			c.skip()
		}
	})
	return n, c.failed("parse notification")
}

// AppendNoticeAnswer appends the answer to a notification: one without text
// means that it was not taken.
func AppendNoticeAnswer(p []byte, taken bool) []byte {
	var n Notice
	if taken {
		n.Text = "success"
	}
	return n.Append(p)
}

// AppendProbe appends the request of a probe.
func AppendProbe(p []byte) []byte { return append(p, "{}"...) }

// AppendProbeAnswer appends the answer to a probe.
func AppendProbeAnswer(p []byte) []byte { return append(p, `{"status":"success"}`...) }

// Hello is a connection request or its answer: what two RDMA-like endpoints
// tell each other. A non-empty Reply in an answer is a refusal.
type Hello struct {
	LocalGID  string
	LocalLID  uint16
	LocalPath string
	Payload   string
	PeerPath  string
	QPNums    []uint32
	Ready     *bool // ready_ack, absent from old peers
	Reply     string
}

// Append appends the JSON of h. The zero Hello is how an engine answers that
// has nothing to connect.
func (h *Hello) Append(p []byte) []byte {
	p = appendString(append(p, `{"local_gid":`...), h.LocalGID)
	p = appendUint(append(p, `,"local_lid":`...), uint64(h.LocalLID))
	p = appendString(append(p, `,"local_nic_path":`...), h.LocalPath)
	p = appendString(append(p, `,"payload":`...), h.Payload)
	p = appendString(append(p, `,"peer_nic_path":`...), h.PeerPath)
	p = append(p, `,"qp_num":[`...)
	for i, q := range h.QPNums {
		if i > 0 {
			p = append(p, ',')
		}
		p = appendUint(p, uint64(q))
	}
	p = append(p, ']')
	if h.Ready != nil {
		p = appendBool(append(p, `,"ready_ack":`...), *h.Ready)
	}
	p = appendString(append(p, `,"reply_msg":`...), h.Reply)
	return append(p, '}')
}

// maxQPs bounds the queue pairs of one connection request.
const maxQPs = 1024

// ParseHello reads a connection request or its answer.
func ParseHello(p []byte) (Hello, error) {
	var h Hello
	c := cursor{p: p}
	c.root(func(key string) {
		switch key {
		case "local_gid": // real readers take these two or leave them
			if c.peek() == '"' {
				h.LocalGID = c.str()
			} else {
				c.skip()
			}
		case "local_lid":
			if b := c.peek(); b >= '0' && b <= '9' {
				h.LocalLID = uint16(c.uint(math.MaxUint16))
			} else {
				c.skip()
			}
		case "local_nic_path":
			h.LocalPath = c.str()
		case "payload":
			h.Payload = c.str()
		case "peer_nic_path":
			h.PeerPath = c.str()
		case "qp_num":
			c.array(func() {
				if len(h.QPNums) == maxQPs {
					c.fail("at most 1024 queue pairs")
				}
				h.QPNums = append(h.QPNums, uint32(c.uint(math.MaxUint32)))
			})
		case "ready_ack":
			ready := c.bool()
			h.Ready = &ready
		case "reply_msg":
			h.Reply = c.str()
		default:
			c.skip()
		}
	})
	return h, c.failed("parse connection request")
}

// Native reads the JSON object of a request and reports whether it is a
// descriptor with a "tideway" member, which only Tideway engines send.
func Native(p []byte) (bool, error) {
	native := false
	c := cursor{p: p}
	c.root(func(key string) {
		native = native || key == memberKey
		c.skip()
	})
	return native, c.failed("parse request")
}

// root is object for the whole text: null is refused.
func (c *cursor) root(member func(key string)) {
	if c.peek() != '{' {
		c.fail("an object")
		return
	}
	c.object(member)
}

// failed returns the first error with what was attempted.
func (c *cursor) failed(op string) error {
	if c.err == nil {
		return nil
	}
	return &errs.Error{Op: op, Reason: errs.Invalid, Err: c.err}
}
