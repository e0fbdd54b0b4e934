package elastic

import (
	"runtime"
	"testing"
)

func TestFreeListKeepsTwoThroughACollection(t *testing.T) {
	t.Parallel()
	var l FreeList[[]byte]
	given := map[*[]byte]bool{}
	var all []*[]byte
	for range maxFree + 1 {
		x := l.Get()
		*x = make([]byte, 1<<10)
		given[x] = true
		all = append(all, x)
	}
	if len(given) != maxFree+1 {
		t.Errorf("%d values for %d calls, want one each while none is put back", len(given), maxFree+1)
	}
	for _, x := range all {
		l.Put(x)
	}
	runtime.GC()
	runtime.GC()
	for i := range maxFree {
		if x := l.Get(); !given[x] || len(*x) != 1<<10 {
			t.Errorf("value %d is new or empty, want one that was put back", i+1)
		}
	}
	if x := l.Get(); given[x] || *x != nil {
		t.Errorf("value %d was put back, want a new one: %d are kept", maxFree+1, maxFree)
	}
}
