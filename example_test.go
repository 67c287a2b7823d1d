package tideway_test

import (
	"context"
	"fmt"

	"github.com/tideway-io/tideway"
	"github.com/tideway-io/tideway/segment"
)

// One engine offers memory under a name; another writes and reads it. They
// could be two processes on two hosts: all that passes between them is an
// address.
func Example() {
	ctx := context.Background()
	server, err := tideway.Open(ctx, tideway.Config{})
	check(err)
	defer server.Close()
	_, err = server.Alloc(1<<20, tideway.BufferOptions{Name: "kv", Access: segment.ReadWrite})
	check(err)

	client, err := tideway.Open(ctx, tideway.Config{})
	check(err)
	defer client.Close()
	seg, err := client.OpenSegment(ctx, server.Addr())
	check(err)
	kv, err := seg.Buffer(ctx, "kv")
	check(err)
	_, err = kv.WriteAt(ctx, []byte("hello"), 4096)
	check(err)
	back := make([]byte, 5)
	_, err = kv.ReadAt(ctx, back, 4096)
	check(err)
	fmt.Println(string(back))
	// Output: hello
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
