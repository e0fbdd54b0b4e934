package proxy

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
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

// says is what Elasticsearch says of a request or an item that it refuses.
func (k Kind) says() (status int, kind, reason string) {
	switch k {
	case Unauthorized:
		return http.StatusUnauthorized, "security_exception", "unable to authenticate user for REST request [/_bulk]"
	case DiskFull, DiskFullItems:
		return http.StatusTooManyRequests, "cluster_block_exception",
			"index [docs] blocked by: [TOO_MANY_REQUESTS/12/disk usage exceeded flood-stage watermark, index has read-only-allow-delete block];"
	case Refused:
		return http.StatusServiceUnavailable, "master_not_discovered_exception", "no master"
	default:
		return http.StatusTooManyRequests, "es_rejected_execution_exception",
			"rejected execution of coordinating operation [coordinating_and_primary_bytes=0, replica_bytes=0, all_bytes=0, coordinating_operation_bytes=1, max_coordinating_and_primary_bytes=0]"
	}
}

// refusal is the answer to a whole request.
func refusal(f Fault) *reply {
	if f.Kind == TooLarge { // of a proxy, which knows nothing of Elasticsearch
		return &reply{http.StatusRequestEntityTooLarge, http.Header{"Content-Type": {"text/html"}}, []byte("<html><h1>413 Request Entity Too Large</h1></html>\n")}
	}
	status, kind, reason := f.Kind.says()
	cause := map[string]any{"type": kind, "reason": reason}
	header := productHeader()
	if f.RetryAfter > 0 {
		header.Set("Retry-After", strconv.Itoa(int(f.RetryAfter.Seconds())))
	}
	return &reply{status, header, marshal(map[string]any{
		"error": map[string]any{"root_cause": []any{cause}, "type": kind, "reason": reason}, "status": status,
	})}
}

func productHeader() http.Header {
	return http.Header{"Content-Type": {"application/json"}, "X-Elastic-Product": {"Elasticsearch"}}
}

// refuseItem makes the tap answer item i itself, with an error.
func (e *exchange) refuseItem(i, status int, kind, reason string) {
	index, _, _ := strings.Cut(strings.TrimPrefix(e.r.URL.Path, "/"), "/")
	e.kept[i] = result{e.lines[i].op: {
		"_index": marshal(index), "_id": marshal(e.lines[i].id), "status": marshal(status),
		"error": marshal(map[string]string{"type": kind, "reason": reason}),
	}}
}

// marshal is for values that always have an encoding.
func marshal(v any) json.RawMessage {
	b, _ := json.Marshal(v)
	return b
}

// corrupt returns wrong items.
func (s *strike) corrupt(results []result) []result {
	at := s.random.IntN(len(results))
	if s.Kind == MissingItems {
		return slices.Delete(slices.Clone(results), at, at+1)
	}
	out := slices.Clone(results)
	for other := range out {
		if string(idOf(out[other])) != string(idOf(out[at])) {
			out[at], out[other] = withID(out[at], idOf(out[other])), withID(out[other], idOf(out[at]))
			return out
		}
	}
	out[at] = withID(out[at], marshal("another")) // there is nothing to swap it with
	return out
}

func idOf(r result) json.RawMessage {
	for _, item := range r {
		return item["_id"]
	}
	return nil
}

func withID(r result, id json.RawMessage) result {
	out := result{}
	for op, item := range r {
		out[op] = maps.Clone(item)
		out[op]["_id"] = id
	}
	return out
}
