package elastic

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/samuelhu324-dev/weft/internal/spanlog"
	"github.com/samuelhu324-dev/weft/outbox"
)

// Write sends actions in order, at most one per document, and returns an outcome for each.
// It sends a batch above Config.MaxBody as several requests, one after the other. ctx must
// carry an [outbox.Authority]. Write keeps no body.
//
// The outcomes are either nil, or complete and to be settled, whatever the error:
//
//	outcomes, nil            the fate of every action, Retry where it is unknown
//	outcomes, *outbox.Fault  the same, and Write has met a shared outage
//	nil, *outbox.Fault       the fate of every action is unknown
//	nil, any other error     the authority is no longer proven, or ctx was cancelled
//
// After the deadline of ctx the rest of the batch ends as es_timeout, which is an outage
// only if no request was answered. When Elasticsearch refuses every item with an answer of
// its own, that is no Fault: the outcomes show it.
//
// With the last row some actions may be written; repeating them is harmless.
func (s *Sink) Write(ctx context.Context, actions []Action) ([]outbox.Outcome, error) {
	if len(actions) == 0 {
		return nil, nil
	}
	r := run{s: s, actions: actions, out: make([]outbox.Outcome, len(actions)), class: make([]class, len(actions))}
	idx := make([]int, 0, len(actions))
	for i := range actions {
		if why := actions[i].check(); why != "" {
			r.out[i] = outbox.Reject(outbox.ReasonDeterministic, why)
			r.class[i] = classInvalid
			continue
		}
		idx = append(idx, i)
	}
	if len(idx) > 0 {
		kind, err := s.nameKind(ctx)
		if err != nil {
			if errors.Is(ctx.Err(), context.Canceled) {
				return nil, context.Cause(ctx)
			}
			f := outbox.AsFault(err) // nothing was sent
			r.note(f)
			r.mark(idx, f)
		} else {
			r.kind = kind
			if err := r.sendAll(ctx, idx); err != nil {
				return nil, err
			}
		}
	}
	return r.finish(ctx, len(idx))
}

// run is one call of Write.
type run struct {
	s       *Sink
	actions []Action
	kind    nameKind

	out   []outbox.Outcome
	class []class

	answered int           // documents whose fate an answer told
	refused  []int         // documents refused alone by a whole-request 4xx
	fault    *outbox.Fault // the first one, or the first shared one
}

// manyRefused is how many consecutive single documents may be refused, with none accepted,
// before the request counts as the cause and not the documents.
const manyRefused = 8

// sendAll splits idx into requests of at most the body limit.
func (r *run) sendAll(ctx context.Context, idx []int) error {
	for len(idx) > 0 {
		limit, n, size := int(r.s.bodyCap.Load()), 0, 0
		for n < len(idx) {
			size += lineSize(&r.actions[idx[n]])
			if n > 0 && size > limit {
				break
			}
			n++
		}
		if err := r.send(ctx, idx[:n]); err != nil {
			return err
		}
		idx = idx[n:]
	}
	return nil
}

// send sends one request, and its halves when the whole request is refused. Its error ends
// the call of Write.
func (r *run) send(ctx context.Context, idx []int) error {
	if r.fault != nil && r.fault.Shared {
		r.mark(idx, r.fault)
		return nil
	}
	err := r.attempt(ctx, idx)
	var p *problem
	for node := 1; node < len(r.s.cfg.URLs) && errors.As(err, &p) && p.unanswered && p.do == giveUp; node++ {
		// The first request may be applied yet, after this one: the versions make that harmless,
		// and the memory of deleted documents has to outlast it, as after any lost answer.
		r.s.loses()
		r.s.log.Warn("a node of Elasticsearch did not answer, or is unavailable; weft asks another one",
			zap.String("event", "elastic.other_node"), zap.Error(p.fault.Err), spanlog.IDs(ctx))
		before := p
		err = r.attempt(ctx, idx)
		if errors.As(err, &p) && p.unanswered && before.fault.Reason == outbox.ReasonES5xx {
			err = before // what a node has said explains more than the silence of another
		}
	}
	switch {
	case err == nil:
		return nil
	case !errors.As(err, &p):
		return err
	case p.do == giveUp:
		r.lose(idx, &p.fault)
		return nil
	case len(idx) > 1:
		r.s.shrink(p, r.size(idx))
		half := len(idx) / 2
		if err := r.send(ctx, idx[:half]); err != nil {
			return err
		}
		return r.send(ctx, idx[half:])
	}
	return r.alone(ctx, idx, p)
}

// attempt sends one request and records the fate of its items.
func (r *run) attempt(ctx context.Context, idx []int) error {
	if err := outbox.CheckAuthority(ctx); err != nil {
		return fmt.Errorf("before bulk request: %w", err)
	}
	if ctx.Err() != nil {
		return r.s.named(ended(ctx))
	}
	var (
		done       int
		missing    bool
		shared     *outbox.Outcome
		unexpected *outbox.Outcome
	)
	ctx = r.s.trace.Start(ctx, "bulk")
	defer r.s.trace.Close(ctx)
	marks, err := r.s.post(ctx, r.actions, idx, r.kind, func(i int, it *item) {
		f := refusedWrongly(classifyItem(it), r.actions[i].Version)
		r.out[i], r.class[i], r.actions[i].Held = f.outcome, f.class, f.held
		missing = missing || f.outcome.Reason == outbox.ReasonES5xx
		switch {
		case f.outcome.Verdict == outbox.Done:
			done++
		case f.shared:
			shared = &r.out[i]
		case f.unexpected:
			unexpected = &r.out[i]
		}
	})
	if err != nil {
		r.s.metrics.failed.Inc()
		return r.s.named(err)
	}
	if missing && done > 0 {
		now := time.Now()
		r.s.partial.Store(&now)
	}
	r.answered += len(idx)
	r.s.trace.items(ctx, done, len(idx))
	if marks != nil {
		for _, i := range idx {
			if r.out[i].Reason == outbox.ReasonES429 {
				r.out[i].Marks = marks
			}
		}
	}
	r.s.metrics.request(done, len(idx))
	if unexpected != nil {
		r.s.log.Error("Elasticsearch gave an unknown answer for a document; weft retries it",
			zap.String("event", "elastic.unknown_answer"), zap.String("reason", string(unexpected.Reason)), zap.String("detail", unexpected.Detail), spanlog.IDs(ctx))
	}
	if shared != nil {
		r.s.forget() // the name may have become something else
		r.note(&outbox.Fault{Reason: shared.Reason, Shared: true, Marks: shared.Marks, Err: fmt.Errorf("Elasticsearch at %s: %s", r.s.host(), shared.Detail)})
	}
	return nil
}

// alone decides the fate of a single document whose request failed in a way that the
// document may have caused.
func (r *run) alone(ctx context.Context, idx []int, p *problem) error {
	i := idx[0]
	size := lineSize(&r.actions[i])
	switch p.do {
	case tooLong:
		r.fail(i, fmt.Sprintf("document of %d bytes is too large for Elasticsearch or a proxy before it (413); see http.max_content_length", size))
	case bisect:
		r.fail(i, outbox.OneLine(p.fault.Err.Error(), maxDetail))
		r.refused = append(r.refused, i)
		if r.answered == 0 && len(r.refused) >= manyRefused {
			r.blameRequest(p)
		}
	default: // cut: a size limit, or a server that went down just now
		if err := r.s.Ready(ctx); err != nil {
			r.lose(idx, &p.fault)
			return nil
		}
		err := r.attempt(ctx, idx)
		var again *problem
		switch {
		case err == nil:
		case !errors.As(err, &again):
			return err
		case again.do == cut && r.s.Ready(ctx) == nil:
			r.fail(i, fmt.Sprintf("connection was closed twice while a document of %d bytes was being sent, by a server that is otherwise well; see http.max_content_length", size))
		case again.do == tooLong, again.do == bisect:
			return r.alone(ctx, idx, again)
		default:
			r.lose(idx, &again.fault)
		}
	}
	return nil
}

// blameRequest turns the failures of documents that were refused one by one into retries:
// none was accepted, so the request is the likely cause.
func (r *run) blameRequest(p *problem) {
	f := p.fault
	f.Shared = true
	r.lose(r.refused, &f)
	r.refused = r.refused[:0]
}

func (r *run) fail(i int, detail string) {
	r.out[i] = outbox.Reject(outbox.ReasonES4xx, detail)
	r.class[i] = class4xx
}

// lose records that the fate of idx is unknown because of f.
func (r *run) lose(idx []int, f *outbox.Fault) {
	r.s.loses()
	r.note(f)
	r.mark(idx, f)
}

func (r *run) mark(idx []int, f *outbox.Fault) {
	for _, i := range idx {
		r.out[i] = outbox.Outcome{Verdict: outbox.Retry, Reason: f.Reason, Detail: outbox.OneLine(f.Error(), maxDetail), RetryAfter: f.RetryAfter, Marks: f.Marks}
		r.class[i] = classOf(f.Reason)
	}
}

func classOf(reason outbox.Reason) class {
	switch reason {
	case outbox.ReasonES429:
		return class429
	case outbox.ReasonES5xx:
		return class5xx
	default:
		return classRequest
	}
}

func (r *run) note(f *outbox.Fault) {
	if r.fault == nil || f.Shared && !r.fault.Shared {
		r.fault = f
	}
}

func (r *run) size(idx []int) int {
	n := 0
	for _, i := range idx {
		n += lineSize(&r.actions[i])
	}
	return n
}

// finish counts the items and returns the results of Write; sent is the number of actions
// that were sent.
func (r *run) finish(ctx context.Context, sent int) ([]outbox.Outcome, error) {
	if n := len(r.refused); n > 1 && r.answered == 0 && n == sent {
		r.blameRequest(&problem{fault: outbox.Fault{
			Reason: outbox.ReasonESRequest,
			Err:    errors.New("every document of the batch was refused: " + r.out[r.refused[0]].Detail),
		}})
	}
	known := sent == 0
	for i := range r.out {
		o := &r.out[i]
		known = known || r.class[i] != classInvalid && o.Verdict != outbox.Retry
		r.s.metrics.items[opOf(&r.actions[i])][resultOf(o)].Inc()
		r.s.metrics.failure(&r.actions[i], r.class[i])
	}
	known = known || r.answered > 0
	switch {
	case r.fault == nil:
		r.address()
		return r.out, nil
	case !known:
		r.fault.Shared = r.fault.Shared || r.fault.Reason == outbox.ReasonESTimeout
		return nil, r.fault
	case r.fault.Shared:
		return r.out, r.fault
	default:
		r.s.log.Warn("the fate of a part of a batch is unknown; weft retries it", zap.String("event", "projection.unknown_fate"),
			zap.String("reason", string(r.fault.Reason)), zap.Error(r.fault.Err), spanlog.IDs(ctx))
		return r.out, nil
	}
}

// address names the server in outcomes of which none is final: they may begin an outage.
func (r *run) address() {
	if slices.ContainsFunc(r.out, func(o outbox.Outcome) bool { return o.Verdict != outbox.Retry }) {
		return
	}
	begin := "Elasticsearch at " + r.s.host() + ": "
	for i := range r.out {
		r.out[i].Detail = outbox.OneLine(begin+r.out[i].Detail, maxDetail)
	}
}

// shrinkFloor is the smallest body limit that shrink sets, in bytes.
const shrinkFloor = 64 << 10

// shrink lowers the body limit after a server or proxy has refused a body of size bytes, so
// that later batches stay below its limit.
func (s *Sink) shrink(p *problem, size int) {
	if p.do != tooLong {
		return
	}
	limit := max(int64(size/2), shrinkFloor)
	if old := s.bodyCap.Load(); limit < old && s.bodyCap.CompareAndSwap(old, limit) {
		s.log.Warn("Elasticsearch or a proxy before it refuses large requests (413); weft sends smaller ones until its restart: raise the limit there, or lower elastic.max_body",
			zap.String("event", "elastic.too_large"), zap.Int("refused_bytes", size), zap.Int64("max_body_bytes", limit))
	}
}
