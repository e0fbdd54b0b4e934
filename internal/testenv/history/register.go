package history

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"
)

// register is what the model knows of a document: a register that takes a write whose
// version is not older than its own (external_gte).
type register struct {
	version int64    // -1 when nothing was ever written
	by      *Applied // the delete that left it deleted; nil when it is there, or never was
}

// asked is one operation of the model: an item, or a look at the document when item is nil.
type asked struct {
	item    *Applied
	there   bool
	version int64
}

// step is the model: whether r can answer o as it was answered, and what becomes of r.
func (r register) step(o *asked) (bool, register) {
	a := o.item
	if a == nil {
		return o.there == (r.version >= 0 && r.by == nil) && (!o.there || o.version == r.version), r
	}
	newer := a.Version >= r.version
	switch {
	case a.refused():
		return !newer, r
	case a.doubtful() && !newer:
		return true, r
	case !newer && (r.by == nil || !forgotten(r.by, a)):
		return false, r
	}
	next := register{version: a.Version}
	if a.Op == Delete {
		next.by = a
	}
	return true, next
}

func model(initial register) porcupine.Model {
	return porcupine.Model{
		Init: func() any { return initial },
		Step: func(state, input, _ any) (bool, any) {
			ok, next := state.(register).step(input.(*asked))
			return ok, next
		},
	}
}

const (
	// explainTimeout bounds the search for one part of a document's history, which takes
	// milliseconds unless very many answers were lost at once.
	explainTimeout = 20 * time.Second
	// partSize is the least number of operations of a part: the memory of a search grows
	// with its square.
	partSize = 500
)

// explain looks for an order of d's operations that explains their answers. A document
// is new when the record begins.
func (d *document) explain(end *End) []Finding {
	history := d.operations(end)
	state := register{version: -1}
	for len(history) > 0 {
		n := cut(history)
		if f := d.explainPart(state, history[:n]); f != nil {
			return []Finding{*f}
		}
		if n < len(history) {
			_, state = state.step(history[n-1].Input.(*asked))
		}
		history = history[n:]
	}
	return nil
}

// cut returns the length of a part of history whose end state is known: its last
// operation is a confirmed write that overlaps with no other.
func cut(history []porcupine.Operation) int {
	busy := int64(math.MinInt64)
	for i := range len(history) - 1 {
		o := &history[i]
		alone := busy < o.Call && o.Return < history[i+1].Call
		if a := o.Input.(*asked).item; alone && i+1 >= partSize && a != nil && a.wrote() {
			return i + 1
		}
		busy = max(busy, o.Return)
	}
	return len(history)
}

func (d *document) explainPart(initial register, history []porcupine.Operation) *Finding {
	f := &Finding{Key: d.items[0].key()}
	switch porcupine.CheckOperationsTimeout(model(initial), history, explainTimeout) {
	case porcupine.Ok:
		return nil
	case porcupine.Unknown:
		f.What = fmt.Sprintf("not decided within %v whether an order of %d operations explains their answers", explainTimeout, len(history))
		return f
	case porcupine.Illegal:
	}
	// The longest run that can be explained ends before what cannot.
	var longest []porcupine.Operation
	_, info := porcupine.CheckOperationsVerbose(model(initial), history, explainTimeout)
	for _, part := range info.PartialLinearizationsOperations()[0] {
		if len(part) > len(longest) {
			longest = part
		}
	}
	explained := map[*asked]bool{}
	state := initial
	for _, o := range longest {
		explained[o.Input.(*asked)] = true
		_, state = state.step(o.Input.(*asked))
	}
	i := slices.IndexFunc(history, func(o porcupine.Operation) bool { return !explained[o.Input.(*asked)] })
	switch o := history[i].Input.(*asked); {
	case o.item == nil && o.there:
		f.Version, f.What = o.version, fmt.Sprintf("there at the end, when it was last %s", state)
	case o.item == nil:
		f.Version, f.What = state.version, fmt.Sprintf("not there at the end, when it was last %s", state)
	default:
		*f = eras{}.finding(o.item, "%s answered with %d when the document was %s", o.item.Op, o.item.Status, state)
	}
	return f
}

// String returns the state as the end of a sentence.
func (r register) String() string {
	switch {
	case r.version < 0:
		return "never written"
	case r.by != nil:
		return fmt.Sprintf("deleted as of version %d", r.version)
	default:
		return fmt.Sprintf("version %d", r.version)
	}
}

// operations returns what the model is asked about, in the order of sending.
func (d *document) operations(end *End) []porcupine.Operation {
	history := make([]porcupine.Operation, 0, len(d.items)+1)
	first := d.items[0].Sent
	mixed := d.mixed()
	overtaken := d.overtaken(first, mixed)
	repeated := map[int64]bool{}
	last := int64(0)
	for _, a := range d.items {
		if !a.wrote() && !a.refused() && !a.doubtful() {
			continue // refused for what it is: the document stays as it was
		}
		if a.doubtful() && !mixed[a.Version] {
			if repeated[a.Version] {
				continue // as if it were the first one, which came earlier
			}
			repeated[a.Version] = true
		}
		op := porcupine.Operation{Input: &asked{item: a}, Call: int64(a.Sent.Sub(first)), Return: int64(a.Answered.Sub(first))}
		last = max(last, op.Call)
		if a.doubtful() {
			op.Return = max(op.Call, overtaken(a))
		} else {
			last = max(last, op.Return)
		}
		history = append(history, op)
	}
	if end != nil {
		version, there := end.Documents[d.id]
		history = append(history, porcupine.Operation{Input: &asked{there: there, version: version}, Call: last + 1, Return: last + 2})
	}
	return history
}

// mixed returns the versions that d was both written and deleted with. A second write
// of any other version changes nothing.
func (d *document) mixed() map[int64]bool {
	ops, mixed := map[int64]string{}, map[int64]bool{}
	for _, a := range d.items {
		if op, known := ops[a.Version]; known && op != a.Op {
			mixed[a.Version] = true
		}
		ops[a.Version] = a.Op
	}
	return mixed
}

// overtaken returns a function that says when an item without an answer can have no
// effect any more: when the same or something newer is known to have been written.
// Without this each of them would stay open to the end, and the search would try all
// their combinations.
func (d *document) overtaken(first time.Time, mixed map[int64]bool) func(*Applied) int64 {
	type mark struct {
		version int64
		at      int64 // when something of this version or a newer one was first confirmed
	}
	marks := make([]mark, len(d.wrote))
	for i, a := range d.wrote {
		marks[i] = mark{a.Version, int64(a.Answered.Sub(first))}
	}
	slices.SortFunc(marks, func(a, b mark) int { return cmp.Compare(a.version, b.version) })
	for i := len(marks) - 2; i >= 0; i-- {
		marks[i].at = min(marks[i].at, marks[i+1].at)
	}
	return func(a *Applied) int64 {
		version := a.Version
		if mixed[version] {
			version++
		}
		i, _ := slices.BinarySearchFunc(marks, version, func(m mark, v int64) int { return cmp.Compare(m.version, v) })
		if i == len(marks) {
			return math.MaxInt64
		}
		return marks[i].at
	}
}
