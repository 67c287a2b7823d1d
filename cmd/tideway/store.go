package main

import (
	"errors"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/tideway-io/tideway/metadata"
	"github.com/tideway-io/tideway/metadata/all"
)

// names says how segments are found: by name in a metadata store, or, without
// one, by host:port.
type names struct {
	url, cluster string
	store        all.Store // nil until it is used, or without one
}

func (n *names) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&n.url, "metadata", "", "find segments by name in the metadata store at URL: etcd://, redis://, http://")
	f.StringVar(&n.cluster, "cluster", all.Cluster(os.Getenv), "use the names of this cluster in the metadata store")
}

// peerToPeer reports whether there is no store.
func (n *names) peerToPeer() bool { return n.url == "" || n.url == all.PeerToPeer }

// open opens the store, if there is one. The console closes it at the end.
func (n *names) open(c *console) (metadata.Store, error) {
	if n.peerToPeer() {
		return nil, nil
	}
	if n.store == nil {
		s, err := all.Open(n.url, os.Getenv)
		if err != nil {
			return nil, err
		}
		n.store = s
		c.atEnd(s.Close)
	}
	return n.store, nil
}

// shown is the URL without a password, for others to use.
func (n *names) shown() string {
	scheme, rest, ok := strings.Cut(n.url, "://")
	if _, host, found := cutLast(rest, '@'); ok && found {
		return scheme + "://" + host
	}
	return n.url
}

// clusterOf is the cluster for an engine's configuration.
func (n *names) clusterOf() string {
	if n.peerToPeer() {
		return ""
	}
	return n.cluster
}

// place reads ADDR/NAME with an optional range; with a store, SEGMENT/NAME.
func (n *names) place(s string) (place, error) {
	if n.peerToPeer() {
		return parsePlace(s)
	}
	segment, rest, ok := cutLast(s, '/')
	if !ok || segment == "" || rest == "" {
		return place{}, usagef("%q: want SEGMENT/NAME; the buffer's name is what is behind the last slash", s)
	}
	return parseBuffer(place{addr: segment}, s, rest)
}

// segmentPlace reads ADDR or ADDR/NAME; with a store, SEGMENT or SEGMENT/NAME, where
// a slash at the end says that there is no buffer.
func (n *names) segmentPlace(s string) (place, error) {
	if n.peerToPeer() {
		return parseSegmentPlace(s)
	}
	if segment, rest, ok := cutLast(s, '/'); ok && rest != "" {
		return n.place(s)
	} else if segment != "" {
		return place{addr: segment}, nil
	}
	return place{}, usagef("%q: want the name of a segment", s)
}

// segment reads ADDR; with a store, a segment's name, which may have slashes.
func (n *names) segment(s string) (string, error) {
	if !n.peerToPeer() {
		if s = strings.TrimSuffix(s, "/"); s == "" {
			return "", errors.New("the name of the segment is empty")
		}
		return s, nil
	}
	p, err := parseSegmentPlace(s)
	if err == nil && p.name != "" {
		err = usagef("ls lists all of %s; tideway stat %s shows one", p.addr, s)
	}
	return p.addr, err
}
