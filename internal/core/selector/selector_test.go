package selector

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/topology"
	"github.com/tideway-io/tideway/transport"
)

func candidates() []Candidate {
	return []Candidate{
		{Name: "rdma", Caps: transport.Caps{Local: []topology.Kind{"cpu", "cuda"}, Remote: []topology.Kind{"cpu", "cuda"}}, Closed: "no RDMA device on this host"},
		{Name: "shm", Caps: transport.Caps{SameHost: true}},
		{Name: "file", Caps: transport.Caps{Remote: []topology.Kind{"file"}, SameHost: true}},
		{Name: "tcp", Caps: transport.Caps{Remote: []topology.Kind{"cpu", "file"}}},
		{Name: "memory", Caps: transport.Caps{OwnOnly: true, Local: []topology.Kind{"*"}, Remote: []topology.Kind{"*"}}},
	}
}

func TestSelect(t *testing.T) {
	all := []string{"rdma", "shm", "file", "tcp", "memory"}
	for _, c := range []struct {
		name string
		pair Pair
		want string
	}{
		{"another host", Pair{Local: "cpu", Remote: "cpu", Peer: all}, "tcp"},
		{"same host", Pair{Local: "cpu", Remote: "cpu", Peer: all, SameHost: true}, "shm tcp"},
		{"own segment", Pair{Local: "cpu", Remote: "cpu", Peer: all, Own: true}, "memory shm tcp"},
		{"own device memory", Pair{Local: "cuda", Remote: "cuda", Peer: all, Own: true}, "memory"},
		{"file there", Pair{Local: "cpu", Remote: "file", Peer: all}, "tcp"},
		{"file here", Pair{Local: "cpu", Remote: "file", Peer: all, SameHost: true}, "file tcp"},
		{"unknown kind", Pair{Local: "*", Remote: "", Peer: all}, "tcp"},
		{"forced", Pair{Local: "cpu", Remote: "cpu", Peer: all, SameHost: true, Only: "tcp"}, "tcp"},
		{"forced and impossible", Pair{Local: "cpu", Remote: "cpu", Peer: all, Only: "shm"}, ""},
		{"peer has less", Pair{Local: "cpu", Remote: "cpu", Peer: []string{"tcp"}, SameHost: true}, "tcp"},
		{"device memory", Pair{Local: "cuda", Remote: "cpu", Peer: all}, ""},
	} {
		cs := candidates()
		var got []string
		for _, i := range Select(c.pair, cs, nil) {
			got = append(got, cs[i].Name)
		}
		if s := strings.Join(got, " "); s != c.want {
			t.Errorf("%s: ladder %q, want %q", c.name, s, c.want)
		}
	}
}

func TestExplain(t *testing.T) {
	got := Explain(Pair{Local: "cpu", Remote: "cpu", Peer: []string{"tcp", "shm", "rdma"}, SameHost: true}, candidates())
	want := []Choice{
		{"rdma", -1, "not open here: no RDMA device on this host"},
		{"shm", 0, "first choice"},
		{"file", -1, "the peer does not have it open"},
		{"tcp", 1, "taken when shm cannot"},
		{"memory", -1, "the peer does not have it open"},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	got = Explain(Pair{Local: "cuda", Remote: "hip", Peer: []string{"tcp", "shm", "file", "memory"}, SameHost: true}, candidates()[1:])
	want = []Choice{
		{"shm", -1, "does not reach cuda memory here, only cpu"},
		{"file", -1, "does not reach cuda memory here, only cpu"},
		{"tcp", -1, "does not reach cuda memory here, only cpu"},
		{"memory", -1, "joins an engine only with itself"},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if r := Explain(Pair{Local: "cpu", Remote: "hip", Peer: []string{"tcp"}, Only: "tcp"}, candidates())[3].Reason; r != "does not reach hip memory at the peer, only cpu, file" {
		t.Errorf("tcp to hip: %q", r)
	}
}

func TestNoneListsBothSides(t *testing.T) {
	err := None(Pair{Local: "cpu", Remote: "cpu", Peer: []string{"efa", "rdma"}}, candidates())
	if !errors.Is(err, errs.ErrUnsupported) || errs.Of(err) != errs.NoCommonTransport {
		t.Errorf("%v is not a NoCommonTransport", err)
	}
	for _, part := range []string{"this engine has [shm file tcp memory]", "the peer has [efa rdma]", "rdma: not open here: no RDMA device", "tcp: the peer does not have it open"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q does not say %q", err, part)
		}
	}
}

func TestSelectAllocatesNothing(t *testing.T) {
	cs, ladder := candidates(), make([]int, 0, 8)
	pair := Pair{Local: "cpu", Remote: "cpu", Peer: []string{"tcp"}}
	if n := testing.AllocsPerRun(100, func() { ladder = Select(pair, cs, ladder[:0]) }); n != 0 {
		t.Errorf("%v allocations, want 0", n)
	}
}
