package main

import (
	"errors"
	"strings"
	"testing"
)

func TestParsePlace(t *testing.T) {
	for text, want := range map[string]place{
		"127.0.0.1:7000/data":             {addr: "127.0.0.1:7000", name: "data"},
		"host.example:7000/a/b":           {addr: "host.example:7000", name: "a/b"},
		"[::1]:7000/kv":                   {addr: "[::1]:7000", name: "kv"},
		"[fe80::1%eth0]:7000/kv":          {addr: "[fe80::1%eth0]:7000", name: "kv"},
		"localhost:1/x@4096":              {addr: "localhost:1", name: "x", offset: 4096, hasOffset: true},
		"localhost:1/x@0":                 {addr: "localhost:1", name: "x", hasOffset: true},
		"localhost:1/x@1MiB:64KiB":        {addr: "localhost:1", name: "x", offset: 1 << 20, length: 64 << 10, hasOffset: true, hasLength: true},
		"[::1]:7/x@0:0":                   {addr: "[::1]:7", name: "x", hasOffset: true, hasLength: true},
		"h:1/tideway.put/0123456789abcde": {addr: "h:1", name: "tideway.put/0123456789abcde"},
	} {
		if got, err := parsePlace(text); err != nil || got != want {
			t.Errorf("parsePlace(%q) = %+v, %v; want %+v", text, got, err, want)
		}
	}
}

func TestParsePlaceRefuses(t *testing.T) {
	for text, say := range map[string]string{
		"127.0.0.1:7000":           "no buffer name",
		"127.0.0.1:7000/":          "no buffer name",
		"127.0.0.1/data":           "want 127.0.0.1:PORT",
		"::1/data":                 "want [::1]:PORT",
		"::1:7000/data":            "did you mean [::1]:7000?",
		"fe80::1%eth0:7000/x":      "did you mean [fe80::1%eth0]:7000?",
		"localhost/data":           "want HOST:PORT",
		":7000/data":               "did you mean 127.0.0.1:7000?",
		"host:70000/x":             "from 1 to 65535",
		"host:0/x":                 "from 1 to 65535",
		"host:http/x":              "from 1 to 65535",
		"tcp://host:1/x":           "leave out tcp://",
		"host:1/x@":                "whole number",
		"host:1/x@1MB":             "did you mean 1MiB?",
		"host:1/x@0:":              "whole number",
		"host:1/x@15EiB:2EiB":      "exceed 64 bits",
		"host:1/@5":                "name is empty",
		"host:1/a b":               "white space",
		"host:1/a@1@2":             "may not contain @",
		"/x":                       "want HOST:PORT",
		"host:1/" + name(256, 'x'): "255 bytes",
	} {
		_, err := parsePlace(text)
		var usage *usageError
		if err == nil || !errors.As(err, &usage) || !strings.Contains(err.Error(), say) {
			t.Errorf("parsePlace(%q): %v; want a usage error that says %q", text, err, say)
		}
	}
}

func name(n int, c byte) string { return strings.Repeat(string(c), n) }

func FuzzParsePlace(f *testing.F) {
	for _, s := range []string{"127.0.0.1:7000/data", "[fe80::1%lo]:1/x@1:2", "::1/x", "h:1/@", "h:1/x@15EiB:2EiB"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		p, err := parsePlace(s)
		if err != nil {
			return
		}
		if p.name == "" || p.addr == "" || p.offset+p.length < p.offset || !strings.HasPrefix(s, p.addr+"/"+p.name) {
			t.Errorf("parsePlace(%q) = %+v", s, p)
		}
	})
}

func TestSuggestions(t *testing.T) {
	words := []string{"serve", "put", "get", "ls", "stat", "bench", "demo", "version"}
	for s, want := range map[string]string{
		"sevre": "serve", "gte": "get", "bnech": "bench", "stats": "stat", "SERVE": "serve", "frobnicate": "", "": "",
	} {
		if got := nearest(s, words); got != want {
			t.Errorf("nearest(%q) = %q; want %q", s, got, want)
		}
	}
}
