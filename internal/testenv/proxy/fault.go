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

	"github.com/samuelhu324-dev/weft/internal/testenv/history"
	"github.com/samuelhu324-dev/weft/outbox"
	"github.com/samuelhu324-dev/weft/projections/elastic"
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

// refusedItems is what the answers to requests are marked with that a [Refusal] has hit.
const refusedItems Kind = "refused-items"

// Modes of a [Refusal].
const (
	EveryNth  = "every_n"   // every n-th item
	atRandom  = "ratio"     // each with a probability
	Documents = "documents" // those of some documents
)

// Refusal says which items of bulk requests a tap keeps, and answers itself with an
// error. Exactly one of EveryN, Ratio and IDs is set. Items are counted in the order in
// which they reach the tap, those of other operations left out.
type Refusal struct {
	Status int // 429, or a 4xx that is final
	EveryN int
	Ratio  float64
	IDs    []string
	Ops    []outbox.Op // empty: all
	Seed   uint64      // of Ratio
}

// Refusals counts the items of a refusal.
type Refusals struct {
	Seen int `json:"seen"` // items of its operations
	Hit  int `json:"hit"`
}

// Mode says how items are chosen.
func (r Refusal) Mode() string {
	switch {
	case r.EveryN > 0:
		return EveryNth
	case len(r.IDs) > 0:
		return Documents
	default:
		return atRandom
	}
}

// EffectiveRatio is the share of items that is hit in the long run, whatever the mode; 0
// when that depends on the documents.
func (r Refusal) EffectiveRatio() float64 {
	if r.EveryN > 0 {
		return 1 / float64(r.EveryN)
	}
	return r.Ratio
}

// String returns the refusal as one line of settings.
func (r Refusal) String() string {
	s := fmt.Sprintf("status=%d mode=%s", r.Status, r.Mode())
	switch r.Mode() {
	case EveryNth:
		s += fmt.Sprintf(" every_n=%d effective_ratio=%.3f", r.EveryN, r.EffectiveRatio())
	case atRandom:
		s += fmt.Sprintf(" ratio=%.3f seed=%d effective_ratio=%.3f", r.Ratio, r.Seed, r.EffectiveRatio())
	default:
		s += " ids=" + strings.Join(r.IDs, ",")
	}
	return s + " ops=" + r.ops()
}

func (r Refusal) ops() string {
	if len(r.Ops) == 0 {
		return string(outbox.Upsert) + "," + string(outbox.Delete)
	}
	names := make([]string, len(r.Ops))
	for i, op := range r.Ops {
		names[i] = string(op)
	}
	return strings.Join(names, ",")
}

// refusing is the current refusal with its counts.
type refusing struct {
	Refusal
	Refusals
	random *rand.Rand
}

func newRefusing(r Refusal) *refusing {
	return &refusing{Refusal: r, random: rand.New(rand.NewPCG(r.Seed, 0))}
}

// hits counts an item, and reports whether it is refused.
func (r *refusing) hits(l line) bool {
	op := outbox.Upsert
	if l.op == history.Delete {
		op = outbox.Delete
	}
	if len(r.Ops) > 0 && !slices.Contains(r.Ops, op) {
		return false
	}
	r.Seen++
	var hit bool
	switch r.Mode() {
	case EveryNth:
		hit = r.Seen%r.EveryN == 0
	case Documents:
		hit = slices.Contains(r.IDs, l.id)
	default:
		hit = r.random.Float64() < r.Ratio
	}
	if hit {
		r.Hit++
	}
	return hit
}

// marks are the headers by which weft tells an injected 429 from a real one.
func (r *refusing) marks(hit bool) http.Header {
	header := http.Header{}
	if r.Status != http.StatusTooManyRequests {
		return header
	}
	header.Set(elastic.Lab429Mode, r.Mode())
	header.Set(elastic.Lab429Ratio, strconv.FormatFloat(r.EffectiveRatio(), 'f', 3, 64))
	header.Set(elastic.Lab429EveryN, strconv.Itoa(r.EveryN))
	header.Set(elastic.Lab429Ops, r.ops())
	header.Set(elastic.Lab429Seed, strconv.FormatUint(r.Seed, 10))
	if hit {
		header.Set(elastic.Lab429Injected, "true")
		header.Set(elastic.Lab429Counter, strconv.Itoa(r.Hit))
	}
	return header
}

// Refuse replaces the refusal; Clear ends it.
func (t *Tap) Refuse(r Refusal) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.refusing = newRefusing(r)
}

// Refusals returns the counts of the current refusal.
func (t *Tap) Refusals() Refusals {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.refusing == nil {
		return Refusals{}
	}
	return t.refusing.Refusals
}

// refuse keeps the items that the current refusal hits, and returns the headers that mark
// the answer.
func (e *exchange) refuse() http.Header {
	e.tap.mu.Lock()
	defer e.tap.mu.Unlock()
	r := e.tap.refusing
	if r == nil {
		return nil
	}
	kind, reason := "document_parsing_exception", "[1:1] failed to parse: refused by weftlab"
	if r.Status == http.StatusTooManyRequests {
		kind, reason = TooMany.says()
	}
	hit := false
	for i, l := range e.lines {
		if e.kept[i] == nil && r.hits(l) {
			hit = true
			e.refuseItem(i, r.Status, kind, reason)
		}
	}
	if hit {
		e.as = refusedItems
		e.tap.injected[refusedItems]++
	}
	return r.marks(hit)
}
