package proxy

import (
	"encoding/json"
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

// says is what Elasticsearch says with a 429 of a request or an item that it refuses.
func (k Kind) says() (kind, reason string) {
	switch k {
	case DiskFull, DiskFullItems:
		return "cluster_block_exception",
			"index [docs] blocked by: [TOO_MANY_REQUESTS/12/disk usage exceeded flood-stage watermark, index has read-only-allow-delete block];"
	default:
		return "es_rejected_execution_exception",
			"rejected execution of coordinating operation [coordinating_and_primary_bytes=0, replica_bytes=0, all_bytes=0, coordinating_operation_bytes=1, max_coordinating_and_primary_bytes=0]"
	}
}

// refusal is the answer to a whole request.
func refusal(f Fault) *reply {
	if f.Kind == TooLarge { // of a proxy, which knows nothing of Elasticsearch
		return &reply{status: http.StatusRequestEntityTooLarge, header: http.Header{"Content-Type": {"text/html"}}, body: []byte("<html><h1>413 Request Entity Too Large</h1></html>\n")}
	}
	kind, reason := f.Kind.says()
	cause := map[string]any{"type": kind, "reason": reason}
	header := productHeader()
	if f.RetryAfter > 0 {
		header.Set("Retry-After", strconv.Itoa(int(f.RetryAfter.Seconds())))
	}
	return &reply{status: http.StatusTooManyRequests, header: header, body: marshal(map[string]any{
		"error": map[string]any{"root_cause": []any{cause}, "type": kind, "reason": reason}, "status": http.StatusTooManyRequests,
	})}
}

func productHeader() http.Header {
	return http.Header{"Content-Type": {"application/json"}, "X-Elastic-Product": {"Elasticsearch"}}
}

// refuseItem makes the tap answer item i itself, with an error.
func (e *exchange) refuseItem(i, status int, kind, reason string) {
	index, _, _ := strings.Cut(strings.TrimPrefix(e.path, "/"), "/")
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
