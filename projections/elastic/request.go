package elastic

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/elastic/go-elasticsearch/v8/esapi"

	"github.com/samuelhu324-dev/weft/outbox"
)

// maxAnswer bounds an answer in bytes; a filtered answer takes about 80 per item.
const maxAnswer = 64 << 20

// answer holds one answer's body.
type answer struct{ buf bytes.Buffer }

func (s *Sink) putAnswer(a *answer) {
	if a.buf.Cap() <= maxPooled {
		s.answers.Put(a)
	}
}

// post sends the actions at idx as one request and calls visit for each item of the
// answer. It returns the marks of the answer, for spans, and a *problem, or the cause of ctx
// when that was cancelled.
func (s *Sink) post(ctx context.Context, actions []Action, idx []int, kind nameKind, visit func(i int, it *item)) (outbox.Marks, error) {
	p := s.payloads.Get()
	for _, i := range idx {
		p.buf = appendAction(p.buf, &actions[i])
	}
	size := len(p.buf)
	ans := s.answers.Get().(*answer)
	ans.buf.Reset()
	start := time.Now()
	status, header, err := s.exchange(ctx, p, kind, &ans.buf)
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
		p := classifyStatus(status, header, ans.buf.Bytes(), time.Now())
		p.fault.Marks = marks
		return nil, p
	case errors.Is(err, context.DeadlineExceeded):
		return nil, &problem{fault: outbox.Fault{Reason: outbox.ReasonESTimeout, Shared: true, Err: err}}
	case err != nil:
		return nil, garbled(err)
	}
	n, err := decode(ans.buf.Bytes(), func(i int, it *item) error {
		if i >= len(idx) {
			return errors.New("more items than were sent")
		}
		a := &actions[idx[i]]
		if string(it.id) != a.ID || it.del != a.Delete {
			return errors.New("the answer is for another document than was sent in its place")
		}
		visit(idx[i], it)
		return nil
	})
	if err != nil {
		return nil, garbled(err)
	}
	if n != len(idx) {
		return nil, garbled(fmt.Errorf("%d items for %d documents", n, len(idx)))
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

// garbled returns the problem of an answer that cannot be decoded: the fate of the items is
// unknown, and the next request may succeed.
func garbled(err error) *problem {
	return &problem{fault: outbox.Fault{Reason: outbox.ReasonESRequest, Err: fmt.Errorf("bulk answer: %w", err)}}
}

// exchange sends p and reads the answer into dst under the request deadline. The
// status is 0 when there was no answer at all.
func (s *Sink) exchange(ctx context.Context, p *payload, kind nameKind, dst *bytes.Buffer) (int, http.Header, error) {
	target := *s.aliasURL
	if kind == namePlain {
		target = *s.plainURL
	}
	ctx, cancel := context.WithTimeout(ctx, s.cfg.RequestTimeout)
	defer cancel()
	req := &http.Request{
		Method:        http.MethodPost,
		URL:           &target,
		Header:        http.Header{"Content-Type": {"application/x-ndjson"}, "Accept": {"application/json"}},
		Body:          p.reader(),
		GetBody:       func() (io.ReadCloser, error) { return p.reader(), nil },
		ContentLength: int64(len(p.buf)),
	}
	req = req.WithContext(ctx)
	s.trace.RecordPathPart(ctx, "index", s.cfg.Index)
	status, header, err := s.do(req, dst)
	s.trace.AfterRequest(req, "elasticsearch", "bulk")
	if err != nil {
		s.trace.RecordError(ctx, err)
	}
	return status, header, err
}

// call sends a small request other than _bulk and returns the status and the body.
// The status is 0 when there was no answer at all.
func (s *Sink) call(ctx context.Context, req esapi.Request) (int, []byte, error) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.RequestTimeout)
	defer cancel()
	res, err := req.Do(ctx, nodes{s.client, len(s.cfg.URLs)})
	if err != nil {
		s.dropIdle()
		return 0, nil, err
	}
	defer func() { _ = res.Body.Close() }()
	if err := genuine(res.StatusCode, res.Header); err != nil {
		return 0, nil, err
	}
	var buf bytes.Buffer
	_, err = buf.ReadFrom(io.LimitReader(res.Body, maxAnswer))
	return res.StatusCode, buf.Bytes(), err
}

var errProduct = errors.New("the server does not say that it is Elasticsearch (no X-Elastic-Product header)")

// genuine returns an error for a 2xx answer of another product, which does not confirm a write.
func genuine(status int, header http.Header) error {
	if status >= 200 && status < 300 && !product(header) {
		return errProduct
	}
	return nil
}

// product reports whether an answer names Elasticsearch as its sender.
func product(header http.Header) bool { return header.Get("X-Elastic-Product") == "Elasticsearch" }

func (s *Sink) do(req *http.Request, dst *bytes.Buffer) (int, http.Header, error) {
	res, err := s.client.Perform(req)
	if err != nil {
		s.dropIdle()
		return 0, nil, err
	}
	defer res.Body.Close()
	if err := genuine(res.StatusCode, res.Header); err != nil {
		return 0, nil, err
	}
	n, err := dst.ReadFrom(io.LimitReader(res.Body, maxAnswer+1))
	if err == nil && n > maxAnswer {
		err = fmt.Errorf("more than %d bytes", maxAnswer)
	}
	return res.StatusCode, res.Header, err
}
