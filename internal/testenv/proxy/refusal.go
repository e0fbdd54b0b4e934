package proxy

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/samuelhu324-dev/weft/internal/testenv/history"
	"github.com/samuelhu324-dev/weft/outbox"
	"github.com/samuelhu324-dev/weft/projections/elastic"
)

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

func (r Refusal) validate() error {
	var errs []error
	if r.Status < 400 || r.Status > 499 {
		errs = append(errs, fmt.Errorf("status %d: want a 4xx", r.Status))
	}
	ways := 0
	for _, set := range []bool{r.EveryN != 0, r.Ratio != 0, len(r.IDs) > 0} {
		if set {
			ways++
		}
	}
	if ways != 1 {
		errs = append(errs, errors.New("want one of: every n-th, a ratio, documents"))
	}
	if r.EveryN < 0 {
		errs = append(errs, fmt.Errorf("every %d: want 1 or more", r.EveryN))
	}
	if r.Ratio < 0 || r.Ratio > 1 {
		errs = append(errs, fmt.Errorf("ratio %v: want 0 to 1", r.Ratio))
	}
	for _, op := range r.Ops {
		if op != outbox.Upsert && op != outbox.Delete {
			errs = append(errs, fmt.Errorf("op %q: want upsert or delete", op))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("refusal: %w", err)
	}
	return nil
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
func (t *Tap) Refuse(r Refusal) error {
	if err := r.validate(); err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.refusing = newRefusing(r)
	return nil
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
