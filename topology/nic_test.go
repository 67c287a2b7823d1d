package topology

import (
	"io/fs"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// hostTree reads testdata/host/NAME.txt: a file begins with "@path" and ends
// with an empty line or the next one.
func hostTree(t testing.TB, name string) (sys, proc fs.FS) {
	t.Helper()
	b, err := os.ReadFile("testdata/host/" + name + ".txt")
	if err != nil {
		t.Fatal(err)
	}
	tree := fstest.MapFS{}
	var at *fstest.MapFile
	for line := range strings.Lines(string(b)) {
		if path, ok := strings.CutPrefix(line, "@"); ok {
			at = &fstest.MapFile{}
			tree[strings.TrimSpace(path)] = at
		} else if strings.TrimSpace(line) == "" {
			at = nil
		} else if at != nil {
			at.Data = append(at.Data, line...)
		}
	}
	return sub(t, tree, "sys"), sub(t, tree, "proc")
}

func sub(t testing.TB, tree fs.FS, dir string) fs.FS {
	t.Helper()
	s, err := fs.Sub(tree, dir)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestDescribeServer(t *testing.T) {
	sys, _ := hostTree(t, "server")
	for _, want := range []NIC{
		{Name: "lo", Index: 1, Loopback: true, Carrier: true, Kind: NICLoopback, NUMA: -1},
		{Name: "eno1", Index: 2, Carrier: true, Kind: NICPhysical, SpeedMbps: 25000},
		{Name: "eno2", Index: 3, Kind: NICPhysical, NUMA: 1},
		{Name: "bond0", Index: 4, Carrier: true, Kind: NICBond, SpeedMbps: 50000, NUMA: -1},
		{Name: "bond0.100", Index: 5, Carrier: true, Kind: NICVLAN, SpeedMbps: 50000, NUMA: -1},
		{Name: "docker0", Index: 6, Kind: NICBridge, NUMA: -1},
		{Name: "veth1a2b", Index: 7, Carrier: true, Kind: NICVeth, SpeedMbps: 10000, NUMA: -1},
		{Name: "flannel.1", Index: 8, Carrier: true, Kind: NICVXLAN, NUMA: -1},
		{Name: "tun0", Index: 9, Carrier: true, Kind: NICTunnel, SpeedMbps: 10, NUMA: -1},
		{Name: "wg0", Index: 10, Carrier: true, Kind: "wireguard", NUMA: -1},
		{Name: "ib0", Index: 11, Carrier: true, Kind: NICPhysical, SpeedMbps: 200000, NUMA: 1},
		{Name: "dummy0", Index: 12, Carrier: true, Kind: NICVirtual, NUMA: -1},
		{Name: "wlan0", Index: 13, Kind: NICPhysical, NUMA: -1},
		{Name: "ipip0", Index: 14, Carrier: true, Kind: NICTunnel, NUMA: -1},
		{Name: "elsewhere", Index: 15, Carrier: true, Kind: NICUnknown, NUMA: -1}, // the tree is of another namespace
		{Name: "missing", Index: 16, Carrier: true, Kind: NICUnknown, NUMA: -1},
	} {
		got := NIC{Name: want.Name, Index: want.Index, Loopback: want.Loopback, Carrier: true, Kind: NICUnknown, NUMA: -1}
		got.describe(sys)
		if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(NIC{}, "Addrs")); diff != "" {
			t.Errorf("%s (-want +got):\n%s", want.Name, diff)
		}
	}
}

func TestOperstateUpMeansCarrier(t *testing.T) {
	sys := fstest.MapFS{"class/net/eth0/ifindex": {Data: []byte("2\n")}, "class/net/eth0/operstate": {Data: []byte("up\n")}}
	n := NIC{Name: "eth0", Index: 2}
	if n.describe(sys); !n.Carrier {
		t.Error("an interface whose state is up has no carrier")
	}
}

// TestInterfacesOfThisHost: every host has a loopback interface with an address.
func TestInterfacesOfThisHost(t *testing.T) {
	nics, err := Interfaces(os.DirFS("/sys"))
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range nics {
		if !n.Loopback {
			continue
		}
		if len(n.Addrs) == 0 || !n.Addrs[0].Addr().IsLoopback() || n.Addrs[0].Bits() <= 0 || !n.Up || !n.Carrier {
			t.Errorf("the loopback interface is %+v", n)
		}
		if runtime.GOOS == "linux" && n.Kind != NICLoopback {
			t.Errorf("its kind is %q", n.Kind)
		}
		return
	}
	t.Errorf("no loopback interface among %+v", nics)
}

func TestZoned(t *testing.T) {
	n := NIC{Name: "eth0"}
	for in, want := range map[string]string{"fe80::1": "fe80::1%eth0", "2001:db8::1": "2001:db8::1", "169.254.1.1": "169.254.1.1"} {
		if got := n.Zoned(netip.MustParseAddr(in)); got.String() != want {
			t.Errorf("Zoned(%s) = %s, want %s", in, got, want)
		}
	}
}
