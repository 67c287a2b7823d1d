package mooncake

import (
	"encoding/hex"
	"testing"
)

func fromHex(t testing.TB, s string) []byte {
	t.Helper()
	p, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestDataHeader: the examples of real traffic, there and back.
func TestDataHeader(t *testing.T) {
	for text, want := range map[string]DataHeader{
		"0500000000000000" + "001000000" + "07f0000" + "8100000000000000": {5, 0x7f0000001000, true, true},
		"0500000000000000" + "001000000" + "07f0000" + "8000000000000000": {5, 0x7f0000001000, false, true},
		"0500000000000000" + "001000000" + "07f0000" + "0100000000000000": {5, 0x7f0000001000, true, false},
		"0500000000000000" + "001000000" + "07f0000" + "0000000000000000": {5, 0x7f0000001000, false, false},
		"0000100000000000" + "0050df6ba17f0000" + "8100000000000000":      {1 << 20, 0x7fa16bdf5000, true, true},
		"4000000000000000" + "e0ff3f0000100000" + "8100000000000000":      {64, 0x1000003fffe0, true, true},
	} {
		p := fromHex(t, text)
		if got := ParseDataHeader(p); got != want {
			t.Errorf("%s: %+v, want %+v", text, got, want)
		}
		if got := hex.EncodeToString(want.Append(nil)); got != text {
			t.Errorf("%+v: %s, want %s", want, got, text)
		}
	}
	odd := fromHex(t, "0500000000000000"+"0010000000000000"+"42ffffffffffffff")
	for op, want := range map[byte]DataHeader{0x42: {5, 4096, false, false}, 0xc2: {5, 4096, false, true}, 0x02: {5, 4096, false, false}} {
		odd[16] = op
		if got := ParseDataHeader(odd); got != want {
			t.Errorf("operation %#x: %+v, want %+v", op, got, want)
		}
	}
}

func TestStatus(t *testing.T) {
	for text, want := range map[string]Status{"000000005654434d": StatusOK, "010000005654434d": StatusRejected, "ffffffff5654434d": 0xffffffff} {
		if got, ok := ParseStatus(fromHex(t, text)); got != want || !ok {
			t.Errorf("%s: %v, %v", text, got, ok)
		}
		if got := hex.EncodeToString(want.Append(nil)); got != text {
			t.Errorf("%v: %s, want %s", want, got, text)
		}
	}
	if _, ok := ParseStatus([]byte("hello, w")); ok {
		t.Error("memory of a version 1 peer passes for a status")
	}
}
