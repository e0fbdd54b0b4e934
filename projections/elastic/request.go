package elastic

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/elastic/elastic-transport-go/v8/elastictransport"
	"github.com/elastic/go-elasticsearch/v8/esapi"

	"github.com/samuelhu324-dev/weft/outbox"
)

// post sends the actions at idx as one request and calls visit for each item of the
// answer. It returns the marks of the answer, for spans, and a *problem, or the cause of ctx
// when that was cancelled.
func (s *Sink) post(ctx context.Context, actions []Action, idx []int, kind nameKind, visit func(i int, it *item)) (outbox.Marks, error) {
	p := s.payloads.Get()
	for _, i := range idx {
		p.buf = appendAction(p.buf, &actions[i])
	}
	limit := maxResults(len(idx), len(p.buf))
	if s.cfg.Gzip {
		p.compress()
	}
	size := len(p.buf)
	ans := s.answers.Get().(*answer)
	start := time.Now()
	status, header, err := s.exchange(ctx, p, kind, ans, limit)
	s.metrics.observe(ctx, start)
	sent := p.read()
	marks := s.trace.marks(ctx, header)
	p.detach()
	s.payloads.Put(p)
	defer s.putAnswer(ans)

	switch {
	case err != nil && ctx.Err() != nil:
		return nil, ended(ctx)
	case err != nil && status == 0:
		p := classifyError(err, size, sent)
		p.unanswered = true
		return nil, p
	case status < 200 || status > 299:
		p := classifyStatus(status, header, ans.buf, s.judges(status, header, ans.buf, bulkKey), time.Now())
		p.fault.Marks = marks
		return nil, p
	case errors.Is(err, context.DeadlineExceeded):
		return nil, &problem{fault: outbox.Fault{Reason: outbox.ReasonESTimeout, Shared: true, Err: err}}
	case err != nil:
		return nil, s.garbled(err)
	}
	n, err := decode(ans.buf, func(i int, it *item) error {
		if i >= len(idx) {
			return errors.New("it has more results than documents were sent")
		}
		a := &actions[idx[i]]
		if string(it.id) != a.ID || it.del != a.Delete {
			return fmt.Errorf("it is for document %.512q, and %q was sent (an ingest pipeline that sets _id does that, and `weft doctor` names it)", it.id, a.ID)
		}
		visit(idx[i], it)
		return nil
	})
	if err == nil && n != len(idx) {
		err = miscounted(n, len(idx))
	}
	if err != nil {
		return nil, s.garbled(err)
	}
	return marks, nil
}

// ended returns the error of a call whose ctx has ended: the cause of the cancellation, or a
// *problem when the deadline of the whole batch has passed.
func ended(ctx context.Context) error {
	cause := context.Cause(ctx)
	if errors.Is(cause, context.DeadlineExceeded) {
		return &problem{fault: outbox.Fault{Reason: outbox.ReasonESTimeout, Err: fmt.Errorf("bulk write: %w", cause)}}
	}
	return cause
}

// named adds the address to a *problem that does not name it.
func (s *Sink) named(err error) error {
	if p, ok := errors.AsType[*problem](err); ok {
		p.fault.Err = withAddress(p.fault.Err, s.host())
	}
	return err
}

// garbled returns the problem of an answer that cannot be decoded: the fate of the documents is
// unknown, and the next request may succeed.
func (s *Sink) garbled(err error) *problem {
	return &problem{fault: outbox.Fault{Reason: outbox.ReasonESRequest, Err: s.unreadable("bulk request", err)}}
}

// exchange sends p and reads the answer into ans, up to limit bytes, under the request deadline. The
// status is 0 when there was no answer at all.
func (s *Sink) exchange(ctx context.Context, p *payload, kind nameKind, ans *answer, limit int64) (int, http.Header, error) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.RequestTimeout)
	defer cancel()
	s.trace.RecordPathPart(ctx, "index", s.cfg.Index)
	status, header, err := s.do(ctx, p, kind, ans, limit)
	if err != nil {
		s.trace.RecordError(ctx, err)
	}
	return status, header, err
}

const (
	// shardWait is how long the server waits for a shard that is missing, before it refuses its documents: one that comes back
	// soon costs no retry.
	shardWait = 3 * time.Second
	// knownWait is the same within knownFor of an answer in which other shards were there, whose documents wait as long, and for
	// the second index of a rebuild.
	knownWait = 500 * time.Millisecond
	knownFor  = time.Minute
)

// patience returns how long the server may wait for a shard.
func (s *Sink) patience() time.Duration {
	wait := shardWait
	if at := s.partial.Load(); s.second || at != nil && time.Since(*at) < knownFor {
		wait = knownWait
	}
	return max(min(s.cfg.RequestTimeout*2/3, wait), time.Millisecond)
}

// do sends p. The server's own timeout stays below the request's, so that a missing shard is
// reported for each item and not as a timeout. The answer is filtered down to what decode reads.
func (s *Sink) do(ctx context.Context, p *payload, kind nameKind, ans *answer, limit int64) (int, http.Header, error) {
	product, err := s.product(ctx)
	if err != nil {
		return 0, nil, err
	}
	alias := kind != namePlain
	header := http.Header{"Content-Type": {"application/x-ndjson"}, "Accept": {"application/json"}}
	if s.cfg.Gzip {
		header.Set("Content-Encoding", "gzip")
	}
	res, err := esapi.BulkRequest{
		Index: s.cfg.Index, Pipeline: s.cfg.Pipeline, RequireAlias: &alias, Timeout: s.patience(),
		FilterPath: []string{"items.*.status", "items.*._id", "items.*.error", "items.*.result"},
		Header:     header,
	}.Do(ctx, upload{s.client, p, s.trace})
	if err != nil {
		s.dropIdle()
		return 0, nil, err
	}
	defer func() { _ = res.Body.Close() }()
	ans.buf, err = s.readAnswer(res, ans.buf, limit)
	body := ans.buf
	if err != nil {
		body = nil
	}
	if alien := s.genuine(product, res.StatusCode, res.Header, body, bulkKey); alien != nil {
		return 0, nil, alien
	}
	return res.StatusCode, res.Header, err
}

// call sends a small request other than _bulk and returns the status and the body.
// The status is 0 when there was no answer at all.
func (s *Sink) call(ctx context.Context, req esapi.Request) (int, []byte, error) {
	return s.callUpTo(ctx, maxPlain, req)
}

// callUpTo is call for an answer of up to limit bytes.
func (s *Sink) callUpTo(ctx context.Context, limit int64, req esapi.Request) (int, []byte, error) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.RequestTimeout)
	defer cancel()
	p, err := s.product(ctx)
	if err != nil {
		return 0, nil, err
	}
	res, err := req.Do(ctx, nodes{s.client, len(s.cfg.URLs)})
	if err != nil {
		s.dropIdle()
		return 0, nil, err
	}
	body, err := s.answerOf(res, limit)
	key := keyOf(req)
	if alien := s.genuine(p, res.StatusCode, res.Header, body, key); alien != nil {
		return 0, nil, alien
	}
	if err == nil && tells(res.StatusCode) && !s.judges(res.StatusCode, res.Header, body, key) {
		return 0, nil, s.alien(p, res.StatusCode)
	}
	return res.StatusCode, body, err
}

// upload carries a bulk request, whose body it knows how to measure and to repeat.
type upload struct {
	client *elastictransport.Client
	p      *payload
	trace  *instrumentation
}

// Perform implements esapi.Transport.
func (u upload) Perform(req *http.Request) (*http.Response, error) {
	req.Body, req.ContentLength = u.p.reader(), int64(len(u.p.buf))
	req.GetBody = func() (io.ReadCloser, error) { return u.p.reader(), nil }
	res, err := u.client.Perform(req)
	u.trace.AfterRequest(req, "elasticsearch", "bulk")
	return res, err
}
