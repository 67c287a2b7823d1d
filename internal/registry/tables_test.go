package registry

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/quick"

	"github.com/tideway-io/tideway/errs"
	"github.com/tideway-io/tideway/segment"
)

func TestKeysNeverRepeat(t *testing.T) {
	inverse := func(first segment.Key, i uint32) bool {
		if i == math.MaxUint32 {
			i-- // there are 2^32-1 keys
		}
		k := keys{first: max(first, 1)}
		key := k.key(uint64(i))
		return key != 0 && k.index(key) == uint64(i)
	}
	if err := quick.Check(inverse, nil); err != nil {
		t.Error(err)
	}
	for _, first := range []segment.Key{1, 2, math.MaxUint32, math.MaxUint32 - 1} {
		for _, i := range []uint32{0, 1, 2, math.MaxUint32 - 3, math.MaxUint32 - 2, math.MaxUint32 - 1} {
			if !inverse(first, i) {
				t.Errorf("key %d after %d: index is not the inverse of key", i, first)
			}
		}
	}
}

// TestKeysAgainstMap compares with a map that remembers everything, over a
// start that wraps around 0 and enough keys to fill and drop pages.
func TestKeysAgainstMap(t *testing.T) {
	var k keys
	k.init(math.MaxUint32 - 2000)
	rng := rand.New(rand.NewPCG(1, 2))
	all, live := map[segment.Key]*Buffer{}, []segment.Key{}
	for range 20_000 {
		if len(live) == 0 || rng.IntN(100) < 52 {
			b := &Buffer{}
			key, ok := k.add(b)
			if _, used := all[key]; !ok || used || key == 0 {
				t.Fatalf("key %d: used before %t", key, used)
			}
			all[key] = b
			live = append(live, key)
			continue
		}
		i := rng.IntN(len(live))
		if rng.IntN(2) == 0 {
			i = 0 // the oldest, so that pages become empty
		}
		k.drop(live[i])
		all[live[i]] = nil
		live = slices.Delete(live, i, i+1)
	}
	dropped := 0
	for i := range *k.pages.Load() {
		if i < int(k.next.Load()/pageSize) && (*k.pages.Load())[i].Load() == nil {
			dropped++
		}
	}
	if dropped == 0 {
		t.Error("no page was dropped: the test does not reach that")
	}
	for key, want := range all {
		got, code := k.get(key)
		if got != want || want == nil && code != errs.Revoked || want != nil && code != errs.OK {
			t.Errorf("key %d: %p, %v; want %p", key, got, code, want)
		}
	}
	for _, key := range []segment.Key{0, k.first - 1, k.key(k.next.Load())} {
		if _, code := k.get(key); code != errs.NotRegistered {
			t.Errorf("key %d, never given: %v", key, code)
		}
	}
}

// TestOrderAgainstSlice compares with one sorted slice.
func TestOrderAgainstSlice(t *testing.T) {
	var o order
	var plain []*Buffer
	rng := rand.New(rand.NewPCG(3, 4))
	for step := range 30_000 {
		grow := 60
		if step > 20_000 {
			grow = 20
		}
		if len(plain) == 0 || rng.IntN(100) < grow {
			b := &Buffer{pub: segment.Buffer{Key: segment.Key(step + 1)}}
			if rng.IntN(10) > 0 {
				b.pub.Addr, b.pub.Length = uint64(step+1)<<20|rng.Uint64N(1<<40)<<24, 1
			} else {
				b.pub.Name = string(rune('a' + rng.IntN(26)))
			}
			o.insert(b)
			i, _ := slices.BinarySearchFunc(plain, b, compare)
			plain = slices.Insert(plain, i, b)
		} else {
			i := rng.IntN(len(plain))
			o.remove(plain[i])
			plain = slices.Delete(plain, i, i+1)
		}
		if step%50 > 0 || len(plain) == 0 {
			continue
		}
		probe := plain[rng.IntN(len(plain))].pub.Addr + rng.Uint64N(3) - 1
		var want *Buffer
		for _, b := range plain {
			if b.pub.Addr <= probe && b.pub.Addr != 0 {
				want = b
			}
		}
		if got := o.floor(probe); got != want {
			t.Fatalf("step %d: floor(%#x) = %v, want %v", step, probe, got, want)
		}
	}
	if got := slices.Collect(o.all); !slices.Equal(got, plain) {
		t.Error("all is not the sorted slice")
	}
	for _, run := range o.runs {
		if len(run) == 0 || len(run) > maxRun {
			t.Errorf("a run of %d", len(run))
		}
	}
}

// find returns the buffer that holds all of mem, nil if none does.
func (r *Registry) find(mem []byte) *Buffer {
	addr, n := address(mem)
	b := r.mu.order.floor(addr)
	if n == 0 || b == nil || !within(b.pub.Length, addr-b.pub.Addr, n) {
		return nil
	}
	return b
}
