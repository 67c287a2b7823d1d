package fault

import (
	"math/rand/v2"
	"sync"
	"time"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/segment"
	"github.com/tideway-io/tideway/transport"
)

// Action is what a rule does where it strikes.
type Action uint8

// The actions. Connect rules see calls of Connect, all others see slices.
const (
	FailConnect  Action = iota + 1 // Connect fails with Code
	DelayConnect                   // Connect takes Delay longer
	Refuse                         // Post refuses the slice with Code
	Fail                           // the slice is accepted, not started, and fails with Code after Delay
	Spoil                          // the slice is done, and then fails with Code: its acknowledgement is lost
	Delay                          // the slice completes Delay later than it would
	Slow                           // the endpoint's slices complete no faster than Rate
	Lose                           // the endpoint's lanes are lost: what is under way fails with Code, and for Delay Post refuses with it
	Kill                           // the same, for good
	Watch                          // nothing: counts, and shields the event from later rules
)

// Rule says what happens to which connects or slices. The zero values of Op,
// Peer, Every, Chance and Count mean all of them.
type Rule struct {
	Do     Action
	Op     transport.Op  // slices of this op
	Peer   segment.Name  // endpoints to this segment
	After  uint64        // let so many pass first
	Every  uint64        // then strike the first of each so many
	Chance float64       // of those, strike with this probability
	Count  uint64        // strike so often, then never again
	Code   errs.Code     // default: LaneLost, for FailConnect Refused
	Delay  time.Duration // see Action
	Rate   uint64        // bytes per second, for Slow
	Doubt  bool          // a WRITE that Spoil, Lose or Kill makes fail is reported in doubt
}

// code returns the code that r fails with.
func (r *Rule) code() errs.Code {
	switch {
	case r.Code != errs.OK:
		return r.Code
	case r.Do == FailConnect:
		return errs.Refused
	}
	return errs.LaneLost
}

// Plan is a list of rules with the memory of what they have done. The first
// rule that strikes decides about an event. With one seed, the same rules and the
// same order of events, the same events are struck. A Plan may be shared by
// several drivers and changed while they work.
type Plan struct {
	mu struct {
		sync.Mutex
		seed  uint64
		rules []*counted
	}
}

// counted is a rule and what it has seen.
type counted struct {
	Rule
	rng    *rand.Rand
	seen   uint64 // events that matched
	struck uint64
}

// New returns a plan.
func New(seed uint64, rules ...Rule) *Plan {
	p := &Plan{}
	p.mu.seed = seed
	p.Set(rules...)
	return p
}

// Set replaces the rules; counting starts anew. Without rules nothing fails from
// now on, but what was struck before stays so.
func (p *Plan) Set(rules ...Rule) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.rules = make([]*counted, len(rules))
	for i, r := range rules {
		p.mu.rules[i] = &counted{Rule: r, rng: rand.New(rand.NewPCG(p.mu.seed, uint64(i)))}
	}
}

// Struck returns how often each rule has struck since Set.
func (p *Plan) Struck() []uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := make([]uint64, len(p.mu.rules))
	for i, r := range p.mu.rules {
		out[i] = r.struck
	}
	return out
}

// verdict is what a plan says about one event, and what to take back should the
// event not happen after all.
type verdict struct {
	rule *Rule // nil: nothing happens
	seen []*counted
	hit  *counted
}

// connect decides about one call of Connect.
func (p *Plan) connect(peer segment.Name) *Rule {
	return p.decide(peer, 0, func(r *Rule) bool { return r.Do == FailConnect || r.Do == DelayConnect }).rule
}

// slice decides about one slice. busy says whether others are under way, without
// which an endpoint may not say overloaded.
func (p *Plan) slice(peer segment.Name, op transport.Op, busy bool) verdict {
	return p.decide(peer, op, func(r *Rule) bool {
		overloaded := r.Do == Refuse && r.code().Kind() == errs.ErrOverloaded
		return r.Do > DelayConnect && (busy || !overloaded)
	})
}

func (p *Plan) decide(peer segment.Name, op transport.Op, applies func(*Rule) bool) (v verdict) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, r := range p.mu.rules {
		if !applies(&r.Rule) || r.Peer != "" && r.Peer != peer || r.Op != 0 && r.Op != op {
			continue
		}
		v.seen = append(v.seen, r)
		if r.strikes() {
			v.rule, v.hit = &r.Rule, r
			break
		}
	}
	return v
}

// strikes counts one matching event and says whether r strikes it.
func (r *counted) strikes() bool {
	r.seen++
	switch n := r.seen - 1; {
	case n < r.After, r.Count != 0 && r.struck >= r.Count:
		return false
	case r.Every > 1 && (n-r.After)%r.Every != 0:
		return false
	case r.Chance != 0 && r.rng.Float64() >= r.Chance:
		return false
	}
	r.struck++
	return true
}

// undo takes v back: the slice was refused by the transport itself and will come
// again.
func (p *Plan) undo(v verdict) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, r := range v.seen {
		r.seen--
	}
	if v.hit != nil {
		v.hit.struck--
	}
}
