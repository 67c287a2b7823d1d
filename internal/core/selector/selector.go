// Package selector chooses the transports that one request may take: from what
// both sides have and can reach, in the order that policy gives. It keeps no
// state; the answer for the same question is always the same.
//
// Which of the chosen transports is connected or resting at the moment is for
// the scheduler to weigh (core.Shard skips resting paths where it can).
package selector

import (
	"fmt"
	"slices"
	"strings"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/topology"
	"github.com/tideway-io/tideway/transport"
)

// Pair is what a request asks of a transport. All requests between one local
// buffer and one remote buffer ask the same, so that the answer can be kept.
type Pair struct {
	Local    topology.Kind // where the initiator's range lives
	Remote   topology.Kind // where the target's range lives
	SameHost bool          // the peer may be on this host; the transport that needs it proves it
	Own      bool          // the peer is this engine itself
	Only     string        // the one transport that the request allows; empty: any
	Peer     []string      // the transports that the peer has open
}

// Candidate is a transport of this build, in order of preference.
type Candidate struct {
	Name   string
	Caps   transport.Caps
	Closed string // why it is not open here; empty: it is open
}

// Choice is one candidate and what became of it.
type Choice struct {
	Name   string
	Rung   int    // place in the ladder, 0 is tried first; -1: rejected
	Reason string // in words
}

// Select appends to ladder the indexes of the candidates that can serve the
// pair, best first. On the engine's own segment those that only join an engine
// with itself come first; otherwise the given order holds.
func Select(p Pair, candidates []Candidate, ladder []int) []int {
	for _, ownOnly := range []bool{true, false} {
		for i := range candidates {
			if candidates[i].Caps.OwnOnly == ownOnly && reject(&p, &candidates[i]) == fits {
				ladder = append(ladder, i)
			}
		}
	}
	return ladder
}

// Explain says of each candidate, in the order given, which rung it got or why none.
func Explain(p Pair, candidates []Candidate) []Choice {
	ladder := Select(p, candidates, nil)
	out := make([]Choice, len(candidates))
	for i := range candidates {
		c := Choice{Name: candidates[i].Name, Rung: slices.Index(ladder, i), Reason: reject(&p, &candidates[i]).words(&p, &candidates[i])}
		switch {
		case c.Rung == 0:
			c.Reason = "first choice"
		case c.Rung > 0:
			c.Reason = fmt.Sprintf("taken when %s cannot", candidates[ladder[c.Rung-1]].Name)
		}
		out[i] = c
	}
	return out
}

// None is the error for a pair that no candidate can serve. It lists what both
// sides have and why each candidate was rejected.
func None(p Pair, candidates []Candidate) *errs.Error {
	here, why := make([]string, 0, len(candidates)), make([]string, 0, len(candidates))
	for i := range candidates {
		if candidates[i].Closed == "" {
			here = append(here, candidates[i].Name)
		}
		why = append(why, candidates[i].Name+": "+reject(&p, &candidates[i]).words(&p, &candidates[i]))
	}
	e := errs.New(errs.NoCommonTransport, "select", "nothing joins %s memory here with %s memory there: this engine has [%s], the peer has [%s] (%s); open a common transport on both sides",
		word(p.Local), word(p.Remote), strings.Join(here, " "), strings.Join(p.Peer, " "), strings.Join(why, "; "))
	e.Stage = "select"
	return e
}

// reason is why a candidate cannot serve a pair.
type reason uint8

const (
	fits reason = iota
	notAllowed
	notOpen
	notAtPeer
	notOwn
	notSameHost
	notLocalKind
	notRemoteKind
)

func reject(p *Pair, c *Candidate) reason {
	switch {
	case p.Only != "" && p.Only != c.Name:
		return notAllowed
	case c.Closed != "":
		return notOpen
	case !slices.Contains(p.Peer, c.Name):
		return notAtPeer
	case c.Caps.OwnOnly && !p.Own:
		return notOwn
	case c.Caps.SameHost && !p.SameHost && !p.Own:
		return notSameHost
	case !reaches(c.Caps.Local, p.Local):
		return notLocalKind
	case !reaches(c.Caps.Remote, p.Remote):
		return notRemoteKind
	}
	return fits
}

// words says r for people.
func (r reason) words(p *Pair, c *Candidate) string {
	switch r {
	case notAllowed:
		return "the request allows only " + p.Only
	case notOpen:
		return "not open here: " + c.Closed
	case notAtPeer:
		return "the peer does not have it open"
	case notOwn:
		return "joins an engine only with itself"
	case notSameHost:
		return "joins only processes of one host, and the peer is not known to be on this one"
	case notLocalKind:
		return fmt.Sprintf("does not reach %s memory here, only %s", word(p.Local), list(c.Caps.Local))
	case notRemoteKind:
		return fmt.Sprintf("does not reach %s memory at the peer, only %s", word(p.Remote), list(c.Caps.Remote))
	}
	return ""
}

// reaches reports whether a transport that lists kinds can reach one of kind k.
// An empty list is cpu, and an unknown kind matches every list.
func reaches(kinds []topology.Kind, k topology.Kind) bool {
	if len(kinds) == 0 {
		return unknown(k) || k == "cpu"
	}
	return unknown(k) || slices.Contains(kinds, k) || slices.ContainsFunc(kinds, unknown)
}

func unknown(k topology.Kind) bool { return k == "" || k == topology.Kind(topology.Any) }

func word(k topology.Kind) string {
	if unknown(k) {
		return "unknown"
	}
	return string(k)
}

func list(kinds []topology.Kind) string {
	if len(kinds) == 0 {
		return "cpu"
	}
	words := make([]string, len(kinds))
	for i, k := range kinds {
		words[i] = string(k)
	}
	return strings.Join(words, ", ")
}
