package tideway_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/tideway-io/tideway"
	"github.com/tideway-io/tideway/segment"
)

// readKV is the README's example: it reads a buffer that another process offers.
func readKV(ctx context.Context, addr string) ([]byte, error) {
	e, err := tideway.Open(ctx, tideway.Config{})
	if err != nil {
		return nil, err
	}
	defer e.Close()
	peer, err := e.OpenSegment(ctx, addr) // "127.0.0.1:7000"
	if err != nil {
		return nil, err
	}
	kv, err := peer.Buffer(ctx, "kv")
	if err != nil {
		return nil, err
	}
	p := make([]byte, kv.Len())
	err = e.Do(ctx, tideway.Request{Op: tideway.Read, Local: tideway.Bytes(p), Remote: kv.At(0)})
	return p, err
}

// One engine offers memory under a name, another reads it. They could be two
// processes on two hosts: all that passes between them is an address.
func Example() {
	ctx := context.Background()
	owner, err := tideway.Open(ctx, tideway.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer owner.Close()
	kv, err := owner.Alloc(5, tideway.BufferOptions{Name: "kv", Access: segment.ReadWrite})
	if err != nil {
		fmt.Println(err)
		return
	}
	copy(kv.Bytes(), "hello")
	p, err := readKV(ctx, owner.Addr())
	fmt.Println(string(p), err)
	// Output: hello <nil>
}

// TestREADME keeps the example of the README the one that runs here.
func TestREADME(t *testing.T) {
	readme := string(must(os.ReadFile("README.md"))(t))
	here := string(must(os.ReadFile("example_test.go"))(t))
	_, after, _ := strings.Cut(readme, "```go\n")
	example, _, ok := strings.Cut(after, "```")
	if !ok || !strings.Contains(here, example) {
		t.Errorf("the README's example is not the code that is tested:\n%s", example)
	}
}
