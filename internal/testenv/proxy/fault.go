package proxy

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

// injectedHeader is the header of an answer that names the [Kind] of the injected fault.
const injectedHeader = "X-Weftlab-Injected"

// Kind of a fault of a [Tap].
type Kind string

// The kinds, all of bulk requests. A request that is "kept" never reaches Elasticsearch.
const (
	TooMany       Kind = "too-many"        // kept, 429
	TooManyItems  Kind = "too-many-items"  // some items are kept and answered with 429
	TooLarge      Kind = "too-large"       // several documents and more than Bytes: kept, 413 as of a proxy
	DiskFull      Kind = "disk-full"       // kept, 429 with the block of a full disk
	DiskFullItems Kind = "disk-full-items" // the same for some items
	Truncated     Kind = "truncated"       // the connection ends within the answer
	Garbled       Kind = "garbled"         // the answer is no JSON
	MissingItems  Kind = "missing-items"   // the answer lacks items
	SwappedIDs    Kind = "swapped-ids"     // the answer has ids at the wrong items

	held Kind = "held" // by [Tap.Hold]
)

// Fault says what a [Tap] does to some of its bulk requests.
type Fault struct {
	Kind  Kind
	Every int    // hits one of so many requests, which one is drawn; 0 means all
	Seed  uint64 // of everything that is drawn

	Items      int           // TooManyItems, DiskFullItems: one of so many items, at least one; 0 means all
	Bytes      int64         // TooLarge
	RetryAfter time.Duration // TooMany, DiskFull: in the header of that name, in whole seconds; 0 means none
}

func (f Fault) validate() error {
	kinds := []Kind{TooMany, TooManyItems, TooLarge, DiskFull, DiskFullItems, Truncated, Garbled, MissingItems, SwappedIDs}
	switch {
	case !slices.Contains(kinds, f.Kind):
		return fmt.Errorf("fault %q: no such kind", f.Kind)
	case f.Every < 0 || f.Items < 0 || f.Bytes < 0 || f.RetryAfter < 0:
		return fmt.Errorf("fault %q: want no number below zero", f.Kind)
	default:
		return nil
	}
}

// injection is a fault at work.
type injection struct {
	Fault
	random     *rand.Rand
	seen, pick int
}

func newInjection(f Fault) *injection {
	return &injection{Fault: f, random: rand.New(rand.NewPCG(f.Seed, 0))}
}

// strikes reports whether the fault is for a request of so many documents and bytes, and counts it.
func (i *injection) strikes(documents, size int) bool {
	// weft gives up a document that is too large by itself.
	if i.Kind == TooLarge && (documents < 2 || int64(size) <= i.Bytes) {
		return false
	}
	n := max(i.Every, 1)
	if i.seen%n == 0 {
		i.pick = i.random.IntN(n)
	}
	hit := i.seen%n == i.pick
	i.seen++
	return hit
}

// strike is a fault for one request, with the chance of its own.
type strike struct {
	Fault
	random *rand.Rand
}

// some draws those of n items that are hit.
func (s *strike) some(n int) []int {
	return s.random.Perm(n)[:max(n/max(s.Items, 1), 1)]
}
