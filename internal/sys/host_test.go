package sys

import (
	"os"
	"runtime"
	"testing"
	"testing/fstest"
)

func TestBootID(t *testing.T) {
	for content, want := range map[string]string{
		"8c2f8e5b-6d6c-4f0c-9b1a-0f1e2d3c4b5a\n": "8c2f8e5b6d6c4f0c9b1a0f1e2d3c4b5a",
		"":                                       "", "8c2f8e5b\n": "", "8C2F8E5B-6d6c-4f0c-9b1a-0f1e2d3c4b5a": "", "../../../../../../../../etc/passwd": "",
	} {
		proc := fstest.MapFS{"sys/kernel/random/boot_id": {Data: []byte(content)}}
		if got := BootID(proc); got != want {
			t.Errorf("BootID of %q = %q, want %q", content, got, want)
		}
	}
	if got := BootID(fstest.MapFS{}); got != "" {
		t.Errorf("BootID without the file = %q", got)
	}
	if runtime.GOOS == "linux" && BootID(os.DirFS("/proc")) == "" {
		t.Error("this Linux host has no boot id")
	}
}
