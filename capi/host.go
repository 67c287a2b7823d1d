//go:build linux && cgo

package main

// #include "include/transfer_engine_c.h"
import "C"

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"unsafe"

	"github.com/tideway-io/tideway/errs"
)

//export twInstall
func twInstall(handle C.uintptr_t, proto *C.char, matrix unsafe.Pointer) C.uintptr_t {
	var transport uint64
	_ = with(handle, func(e *engine) error {
		name, err := text("install transport", "proto", proto)
		if err != nil {
			return err
		}
		if matrix != nil {
			var m map[string][][]string
			if err := json.Unmarshal([]byte(C.GoString((*C.char)(matrix))), &m); err != nil {
				return errs.New(errs.Invalid, "install transport", "the topology is no matrix: %v; it looks like {\"cpu:0\": [[\"eth0\"], []]}", err)
			}
		}
		if err := e.has(name); err != nil {
			return err
		}
		// The transports of an engine are there from the start; this one is named by
		// a number of its own that nothing takes back.
		transport = e.handle | 1
		return nil
	})
	return C.uintptr_t(transport)
}

// has says whether the engine moves bytes by the transport of that name.
func (e *engine) has(name string) error {
	var open []string
	for _, t := range e.tw.Inspect().Transports {
		if t.Name == name && t.Open {
			return nil
		}
		if t.Name == name {
			return errs.New(errs.Unsupported, "install transport", "%s cannot be used: %s", name, t.Reason)
		}
		if t.Open {
			open = append(open, t.Name)
		}
	}
	return errs.New(errs.Unsupported, "install transport", "%q is none of this build's transports: %s", name, strings.Join(open, ", "))
}

//export twLoads
func twLoads(handle C.uintptr_t, stats *C.nic_load_stat_t, count *C.size_t) C.int {
	err := with(handle, func(e *engine) error {
		if count == nil || stats == nil {
			return null("get load", "stats or count")
		}
		loads := e.loads()
		// C has room for *count records at stats, each with a name of a fixed length.
		for i, l := range loads[:min(len(loads), int(*count))] {
			out := &unsafe.Slice(stats, *count)[i]
			name := unsafe.Slice((*byte)(unsafe.Pointer(&out.device_name)), C.NIC_LOAD_DEVICE_NAME_LEN)
			name[copy(name[:len(name)-1], l.device)] = 0
			out.inflight_bytes, out.ewma_bandwidth_bps = C.uint64_t(l.inFlight), C.double(l.rate*8)
		}
		*count = C.size_t(len(loads))
		return nil
	})
	return failed(err)
}

// load is what one local address carries.
type load struct {
	device   string
	inFlight uint64
	rate     float64 // bytes a second
}

// loads sums the rails of all peers by their local end.
func (e *engine) loads() []load {
	var all []load
	at := make(map[string]int)
	for _, p := range e.tw.Inspect().Peers {
		for _, path := range p.Paths {
			for _, r := range path.Rails {
				name := r.Local
				if host, _, err := net.SplitHostPort(r.Local); err == nil {
					name = host
				}
				i, ok := at[name]
				if !ok {
					i = len(all)
					at[name] = i
					all = append(all, load{device: name})
				}
				all[i].inFlight += r.InFlight
				all[i].rate += r.BytesPerSecond
			}
		}
	}
	return all
}

//export twLinks
func twLinks(handle C.uintptr_t, buf *C.char, n C.size_t, asJSON C.int) C.int {
	err := with(handle, func(*engine) error {
		nics, err := links("/sys/class/net")
		if err != nil {
			return err
		}
		if asJSON == 0 {
			return put("show links", buf, n, linkTable(nics))
		}
		out, err := json.Marshal(map[string]any{"local_nics": nics, "topology": map[string]any{}})
		if err != nil {
			return err
		}
		return put("show links", buf, n, string(out))
	})
	return failed(err)
}

// link is one network interface as showLinks has it.
type link struct {
	Device string `json:"device"`
	NUMA   int    `json:"numa"`
	GID    string `json:"gid"`
	Index  int    `json:"gid_index"`
	Port   int    `json:"port"`
	Speed  int    `json:"speed_gbps"`
	Source string `json:"source"`
}

// links lists the interfaces in a sysfs directory, without lo.
func links(dir string) ([]link, error) {
	names, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	all := []link{}
	for _, n := range names {
		if n.Name() == "lo" {
			continue
		}
		l := link{Device: n.Name(), NUMA: number(dir, n.Name(), "device/numa_node", -1), Source: "topology"}
		l.Speed = max(number(dir, n.Name(), "speed", 0), 0) / 1000
		all = append(all, l)
	}
	return all, nil
}

// number reads a number of an interface, or returns what to take without it.
func number(dir, name, file string, otherwise int) int {
	b, err := os.ReadFile(filepath.Join(dir, name, file))
	if err != nil {
		return otherwise
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		return otherwise
	}
	return n
}

func linkTable(nics []link) string {
	var s strings.Builder
	fmt.Fprintf(&s, "%-16s %4s %10s\n", "device", "numa", "speed")
	for _, l := range nics {
		fmt.Fprintf(&s, "%-16s %4d %5d Gb/s\n", l.Device, l.NUMA, l.Speed)
	}
	return s.String()
}
