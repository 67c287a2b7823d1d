// Package topology is the hardware of one host as plain data: where memory can
// live, which network interfaces there are, and which address to advertise.
//
// It reads an fs.FS or a list of interfaces that it is given; it opens no
// device and sends no packet.
package topology

import (
	"fmt"
	"strconv"
	"strings"
)

// Location says where memory lives: "cpu:0", "cuda:3", "hip:1", "file",
// "cxl:0", or "*" when it is not known or mixed. The zero value means "*".
type Location string

// Any is the location that matches every other one.
const Any Location = "*"

// File is the location of buffers backed by a file.
const File Location = "file"

// Kind is a location without its index: "cpu", "cuda", "file", "*".
type Kind string

// Kind returns the part before the colon; "*" for the zero value.
func (l Location) Kind() Kind {
	if l == "" {
		return Kind(Any)
	}
	kind, _, _ := strings.Cut(string(l), ":")
	return Kind(kind)
}

// Index returns the number after the colon, or -1 where there is none.
func (l Location) Index() int {
	_, after, ok := strings.Cut(string(l), ":")
	if !ok {
		return -1
	}
	n, err := strconv.Atoi(after)
	if err != nil {
		return -1
	}
	return n
}

// ParseLocation accepts "*", "", "file", and KIND:N with a lower-case kind.
func ParseLocation(s string) (Location, error) {
	if s == "" || s == string(Any) {
		return Any, nil
	}
	if s == string(File) {
		return File, nil
	}
	kind, index, _ := strings.Cut(s, ":")
	n, err := strconv.Atoi(index)
	plain := err == nil && n >= 0 && strconv.Itoa(n) == index // one spelling: no sign, no leading zero
	if plain && kind != "" && kind != string(File) && strings.Trim(kind, "abcdefghijklmnopqrstuvwxyz_") == "" {
		return Location(s), nil
	}
	return "", fmt.Errorf("location %q: want \"*\", \"file\" or KIND:INDEX such as \"cpu:0\" or \"cuda:3\"", s)
}
