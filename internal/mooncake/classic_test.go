package mooncake

import (
	"bytes"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/segment"
)

// TestClassicGolden: what real encoders wrote for every protocol is read, and
// written again byte for byte.
func TestClassicGolden(t *testing.T) {
	files, err := filepath.Glob("testdata/seg-*.json")
	if err != nil || len(files) != 16 {
		t.Fatal(files, err)
	}
	for _, file := range append(files, "testdata/tcp-two-buffers.json", "testdata/tcp-http-empty.json") {
		want := bytes.TrimSuffix(golden(t, filepath.Base(file)), []byte("\n"))
		c, err := ParseClassic(want)
		if err != nil {
			t.Error(file, err)
			continue
		}
		_, at, _ := strings.Cut(string(want), `"timestamp":"`)
		got, err := c.Append(nil, stamp(t, at[:len(timeLayout)]))
		if c.Has("tcp") {
			for i := range c.Buffers { // whoever filled this one in gave them locations
				c.Buffers[i].Name = c.Name
			}
		}
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: wrote\n%s, want\n%s, %v", file, got, want, err)
		}
	}
}

// TestClassicStrict: what makes a real reader refuse the whole descriptor, and
// what it lets pass.
func TestClassicStrict(t *testing.T) {
	const dev = `"devices":[{"name":"d","gid":"g","lid":1},{"name":"e","gid":"g","lid":1}]`
	for text, want := range map[string]error{
		`{"protocol":"tcp","buffers":[{"name":"n","addr":1,"length":1}]}`:                                  nil,
		`{"protocol":"tcp","buffers":[{"name":"","addr":1,"length":1}]}`:                                   errs.ErrInvalid,
		`{"protocol":"tcp","buffers":[{"name":"n","addr":0,"length":1}]}`:                                  errs.ErrInvalid,
		`{"protocol":"tcp","buffers":[{"name":"n","addr":1}]}`:                                             errs.ErrInvalid,
		`{"protocol":"tcp","buffers":[{"name":"n","addr":"1","length":1}]}`:                                errs.ErrInvalid,
		`{"protocol":"tcp","buffers":[{"name":"n","addr":-1,"length":1}]}`:                                 errs.ErrInvalid,
		`{"protocol":"tcp","buffers":[{"name":"n","addr":18446744073709551615,"length":2}]}`:               errs.ErrInvalid,
		`{"protocol":"tcp","unknown":{"a":[1,{}]},"buffers":[{"name":"n","addr":1,"length":1,"x":null}],}`: nil,
		`[]`:                    errs.ErrInvalid,
		`null`:                  errs.ErrInvalid,
		`{}`:                    errs.ErrUnsupported,
		`{"protocol":"smtp"}`:   errs.ErrUnsupported,
		`{"protocol":["rdma"]}`: errs.ErrUnsupported,
		`{"protocol":7}`:        errs.ErrInvalid,
		`{"protocol":"rdma",` + dev + `,"buffers":[{"name":"n","addr":1,"length":1,"rkey":[1,2],"lkey":[1,2]}]}`:                   nil,
		`{"protocol":"rdma",` + dev + `,"buffers":[{"name":"n","addr":1,"length":1}]}`:                                             nil,
		`{"protocol":"rdma",` + dev + `,"buffers":[{"name":"n","addr":1,"length":1,"rkey":[1],"lkey":[1]}]}`:                       errs.ErrInvalid,
		`{"protocol":"rdma",` + dev + `,"buffers":[{"name":"n","addr":1,"length":1,"rkey":[1,2],"lkey":[1]}]}`:                     errs.ErrInvalid,
		`{"protocol":"barex",` + dev + `,"buffers":[{"name":"n","addr":1,"length":1,"rkey":[1],"lkey":[1]}]}`:                      nil,
		`{"protocol":"barex",` + dev + `,"buffers":[{"name":"n","addr":1,"length":1,"rkey":[1],"lkey":[]}]}`:                       errs.ErrInvalid,
		`{"protocol":"efa",` + dev + `,"buffers":[{"name":"n","addr":1,"length":1,"rkey":[18446744073709551615,2],"lkey":[1,2]}]}`: nil,
		`{"protocol":"rdma","devices":[{"name":"d","lid":1}]}`:                                                                     errs.ErrInvalid,
		`{"protocol":"rdma","devices":[{"name":"","gid":"g"}]}`:                                                                    errs.ErrInvalid,
		`{"protocol":"rdma","devices":[],"priority_matrix":{"cpu:0":"nonsense"}}`:                                                  nil,
		`{"protocol":"ub","devices":[{"name":"d"}]}`:                                                                               errs.ErrInvalid,
		`{"protocol":"ub","buffers":[{"name":"n","addr":1,"length":1,"tseg":[]}]}`:                                                 errs.ErrInvalid,
		`{"protocol":"nccl","buffers":[{"name":"n","addr":1,"length":1}]}`:                                                         errs.ErrInvalid,
		`{"protocol":"nccl","buffers":[{"name":"n","addr":1,"length":1,"device_id":-1}]}`:                                          errs.ErrInvalid,
		`{"protocol":"nccl","buffers":[{"name":"n","addr":1,"length":1,"device_id":0}]}`:                                           nil,
		`{"protocol":"ascend","buffers":[{"name":"n","addr":1,"length":1}],"rank_info":{"rankId":3}}`:                              nil,
		`{"protocol":"ascend","devices":[{"lid":1}]}`:                                                                              errs.ErrInvalid,
		`{"protocol":"cxl","buffers":[{"name":"n","length":1,"offset":0}]}`:                                                        nil,
		`{"protocol":"cxl","buffers":[{"name":"","length":1}]}`:                                                                    errs.ErrInvalid,
		`{"protocol":"cxl","buffers":[{"name":"n"}]}`:                                                                              errs.ErrInvalid,
		`{"protocol":"hip","buffers":[{"name":"n","addr":1,"length":1,"shm_name":"AB"}]}`:                                          nil,
		`{"protocol":"hip","buffers":[{"name":"n","addr":0,"length":1,"shm_name":"AB"}]}`:                                          errs.ErrInvalid,
		`{"protocol":"nvmeof","buffers":[{"file_path":"/f","length":5,"local_path_map":{"h":"/g"}},{}]}`:                           nil,
		`{"protocol":["tcp","smtp"]}`: errs.ErrUnsupported,
		`{"protocol":["tcp","cxl"],"buffers":[{"name":"n","length":1,"offset":5,"protocol":"cxl"},{"protocol":"later"}]}`: nil,
		`{"protocol":["tcp","cxl"],"buffers":[{"name":"n","length":1,"protocol":"tcp"}]}`:                                 errs.ErrInvalid,
	} {
		if c, err := ParseClassic([]byte(text)); !errors.Is(err, want) || (err == nil) != (want == nil) || (c == nil) != (want != nil) {
			t.Errorf("%s: %+v, %v, want %v", text, c, err, want)
		}
	}
}

// TestClassicSkips: buffers without a handle, and those of a protocol that comes
// later, are left out.
func TestClassicSkips(t *testing.T) {
	c, err := ParseClassic([]byte(`{"protocol":"hip","buffers":[{"name":"","shm_name":""},{"name":"n","addr":1,"length":1,"shm_name":"AB"}]}`))
	if err != nil || len(c.Buffers) != 1 || c.Buffers[0].Handle != "AB" {
		t.Errorf("%+v, %v", c, err)
	}
	c, err = ParseClassic([]byte(`{"protocol":"nvmeof","buffers":[{"file_path":"/f","length":5,"local_path_map":{"h":"/g"}}]}`))
	if err != nil || len(c.Files) != 1 || c.Files[0].Path != "/f" || c.Files[0].Local["h"] != "/g" || c.Files[0].Length != 5 {
		t.Errorf("%+v, %v", c, err)
	}
	if _, err := c.Append(nil, time.Now()); !errors.Is(err, errs.ErrInvalid) {
		t.Error("nvmeof is written:", err)
	}
}

// TestSeveralProtocols: the array form, there and back, and what is made of it.
func TestSeveralProtocols(t *testing.T) {
	const text = `{"buffers":[{"addr":4096,"length":64,"lkey":[1],"name":"cpu:0","protocol":"rdma","rkey":[2]},{"addr":4096,"length":64,"name":"n","protocol":"tcp"},` +
		`{"length":64,"name":"n","offset":7,"protocol":"cxl"},{"addr":8192,"length":1,"name":"hip:0","protocol":"hip","shm_name":"AB"}],` +
		`"cxl_base_addr":5,"cxl_name":"/dev/dax0.0","devices":[{"gid":"g","lid":1,"name":"d"}],"name":"n","priority_matrix":null,` +
		`"protocol":["rdma","tcp","cxl","hip"],"rdma_server_name":"r","tcp_data_port":15777,"tcp_proto_version":2,"timestamp":"2026-08-01 12:00:00.000001"}`
	c, err := ParseClassic([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	got, err := c.Append(nil, stamp(t, "2026-08-01 12:00:00.000001"))
	if err != nil || string(got) != text {
		t.Errorf("%v\n%s, want\n%s", err, got, text)
	}
	d, _, err := DecodeDesc([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	want := &segment.Desc{
		Name: "n", Protocol: "rdma,tcp,cxl,hip", TCPDataPort: 15777, TCPVersion: 2, Lookup: map[string]int{},
		Transports: []string{"mooncake-rdma", "mooncake", "mooncake-cxl", "mooncake-hip"},
		Buffers:    []segment.Buffer{{Addr: 4096, Length: 64, Location: "*", Access: segment.ReadWrite}},
	}
	if diff := cmp.Diff(want, d); diff != "" {
		t.Error(diff)
	}
	d, _, err = DecodeDesc(golden(t, "seg-rdma.json"))
	if err != nil || !slices.Equal(d.Transports, []string{"mooncake-rdma"}) || len(d.Buffers) != 2 || d.Buffers[1].Location != "cuda:0" {
		t.Errorf("%+v, %v", d, err)
	}
}

// TestClassicAppendRefuses: nothing is published that real readers would refuse.
func TestClassicAppendRefuses(t *testing.T) {
	for _, c := range []Classic{
		{Protocols: []string{"tcp"}}, {Name: "n"}, {Name: "n", Protocols: []string{"smtp"}},
		{Name: "n", Protocols: []string{"tcp"}, Buffers: []ClassicBuffer{{Name: "n", Length: 1}}},
		{Name: "n", Protocols: []string{"rdma"}, Devices: []Device{{Name: "d"}}},
	} {
		if p, err := c.Append(nil, time.Now()); err == nil {
			t.Errorf("%+v: %s", c, p)
		}
	}
}

func FuzzClassic(f *testing.F) {
	files, _ := filepath.Glob("testdata/*.json")
	for _, file := range files {
		f.Add(golden(f, filepath.Base(file)))
	}
	f.Fuzz(func(t *testing.T, p []byte) {
		c, err := ParseClassic(p)
		if err != nil || c.Has("nvmeof") || c.Name == "" {
			return
		}
		text, err := c.Append(nil, time.Now())
		if err != nil {
			t.Fatalf("%+v is read and not written: %v", c, err)
		}
		again, err := ParseClassic(text)
		if err != nil || len(again.Buffers) != len(c.Buffers) || !slices.Equal(again.Protocols, c.Protocols) {
			t.Fatalf("%s is written and not read: %v", text, err)
		}
	})
}
