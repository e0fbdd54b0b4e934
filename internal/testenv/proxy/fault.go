package proxy

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"time"
)

// injectedHeader is the header of an answer that names the [Kind] of the injected fault.
const injectedHeader = "X-Weftlab-Injected"

// Kind of a fault of a [Tap].
type Kind string

// The kinds. A request that is "kept" never reaches Elasticsearch.
const (
	TooMany       Kind = "too-many"        // bulk: kept, 429
	TooManyItems  Kind = "too-many-items"  // bulk: some items are kept and answered with 429
	TooLarge      Kind = "too-large"       // bulk of several documents and more than Bytes: kept, 413 as of a proxy
	Unauthorized  Kind = "unauthorized"    // bulk: kept, 401
	DiskFull      Kind = "disk-full"       // bulk: kept, 429 with the block of a full disk
	DiskFullItems Kind = "disk-full-items" // the same for some items
	ResetRequest  Kind = "reset-request"   // bulk: kept, the connection is reset
	ResetAnswer   Kind = "reset-answer"    // bulk: the connection is reset instead of an answer
	SlowRequest   Kind = "slow-request"    // bulk: sent on after Delay
	SlowAnswer    Kind = "slow-answer"     // bulk: answered after Delay
	Truncated     Kind = "truncated"       // bulk: the connection ends within the answer
	Garbled       Kind = "garbled"         // bulk: the answer is no JSON
	MissingItems  Kind = "missing-items"   // bulk: the answer lacks items
	SwappedIDs    Kind = "swapped-ids"     // bulk: the answer has ids at the wrong items
	Refused       Kind = "refused"         // anything but bulk: kept, 503

	held Kind = "held" // by [Tap.Hold]
)

// Fault says what a [Tap] does to some of its requests.
type Fault struct {
	Kind  Kind
	Every int    // hits one of so many requests, which one is drawn; 0 means all
	Times int    // hits so many requests in all; 0 means without end
	Seed  uint64 // of everything that is drawn

	Items      int           // TooManyItems, DiskFullItems: one of so many items, at least one; 0 means all
	Bytes      int64         // TooLarge
	Delay      time.Duration // SlowRequest, SlowAnswer
	RetryAfter time.Duration // TooMany, DiskFull: in the header of that name, in whole seconds; 0 means none
}

func (f Fault) validate() error {
	var errs []error
	switch f.Kind {
	case TooMany, TooManyItems, TooLarge, Unauthorized, DiskFull, DiskFullItems, ResetRequest, ResetAnswer,
		Truncated, Garbled, MissingItems, SwappedIDs, Refused:
	case SlowRequest, SlowAnswer:
		if f.Delay == 0 {
			errs = append(errs, errors.New("want a delay"))
		}
	default:
		errs = append(errs, errors.New("no such kind"))
	}
	if f.Every < 0 || f.Times < 0 || f.Items < 0 || f.Bytes < 0 || f.Delay < 0 || f.RetryAfter < 0 {
		errs = append(errs, errors.New("want no number below zero"))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("fault %q: %w", f.Kind, err)
	}
	return nil
}

// injection is a fault at work.
type injection struct {
	Fault
	random           *rand.Rand
	seen, hits, pick int
}

func newInjection(f Fault) *injection {
	return &injection{Fault: f, random: rand.New(rand.NewPCG(f.Seed, 0))}
}

// strikes reports whether the fault is for a request of so many documents and bytes, and counts it. A
// request that is no bulk request has no documents.
func (i *injection) strikes(documents, size int) bool {
	// weft gives up a document that is too large by itself.
	tooLarge := documents > 1 && int64(size) > i.Bytes
	if (documents > 0) == (i.Kind == Refused) || i.Kind == TooLarge && !tooLarge || i.Times > 0 && i.hits >= i.Times {
		return false
	}
	n := max(i.Every, 1)
	if i.seen%n == 0 {
		i.pick = i.random.IntN(n)
	}
	hit := i.seen%n == i.pick
	i.seen++
	if hit {
		i.hits++
	}
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
