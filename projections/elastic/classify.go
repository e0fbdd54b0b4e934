package elastic

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"syscall"
	"time"

	"github.com/samuelhu324-dev/weft/outbox"
)

// class is the failure_class label: a closed set.
type class uint8

const (
	classNone class = iota
	class429
	class4xx
	class5xx
	classConflict
	classIndex   // the index is missing, closed, blocked or not allowed, or has no ingest pipeline
	classInvalid // never sent: Elasticsearch could not take it
	classRequest // lost with its whole request
	classOther
	classes
)

func (c class) String() string {
	return [classes]string{"none", "429", "4xx", "5xx", "conflict", "index", "invalid", "request", "other"}[c]
}

// fate is the result of one item.
type fate struct {
	outcome    outbox.Outcome
	class      class
	shared     bool  // every item would meet it: the index, not the document, is in trouble
	unexpected bool  // outside of what is known of Elasticsearch
	held       int64 // version of the document, with classConflict
}

// dropped says what the result noop of a write means: nothing was written.
const dropped = "an ingest pipeline drops the document, and leaves the one that is there as it was; to take a document away, return true as deleted"

// classifyItem classifies one item; the first row that fits counts:
//
//	200 on a write, result noop                    failed es_4xx
//	2xx without error                              done
//	409 version_conflict_engine_exception          done, already_applied
//	404 on a delete, result not_found              done, es_404
//	index missing, closed or without write index   retry es_request_error, shared
//	ingest pipeline missing                        retry es_request_error, shared
//	block: flood stage (whatever status)           retry es_429, shared
//	block: index write                             failed es_4xx
//	other blocks                                   retry es_request_error, shared
//	an ingest pipeline fails the document          failed es_4xx
//	401, 403 security_exception                    retry es_request_error, shared
//	429                                            retry es_429
//	5xx                                            retry es_5xx
//	408                                            retry es_timeout
//	404, 409 of any other kind                     retry es_other, unexpected
//	other 4xx                                      failed es_4xx
//	anything else                                  retry es_other, unexpected
//
// A conflict with a document that is older than what was sent is none: see refusedWrongly.
//
// A shared fault is one of the index or of the credentials, so no document may end as a
// dead letter because of it. The exception is the index write block, which an operator
// sets on purpose and which must show as es_4xx.
func classifyItem(it *item) fate {
	if it.err == nil {
		switch {
		case it.status == http.StatusOK && !it.del && string(it.result) == "noop":
			return fate{outcome: outbox.Reject(outbox.ReasonES4xx, dropped), class: class4xx}
		case it.status >= 200 && it.status < 300:
			return fate{outcome: outbox.OK()}
		case it.status == http.StatusNotFound && it.del && string(it.result) == "not_found":
			return fate{outcome: outbox.NoOp(outbox.NoopES404)}
		}
	}
	e := parseCause(it.err)
	reject := func(r outbox.Reason, c class) fate {
		return fate{outcome: outbox.Reject(r, e.detail(it.status)), class: c}
	}
	shared := func(r outbox.Reason, c class) fate {
		f := reject(r, c)
		f.shared = true
		return f
	}
	unexpected := func() fate {
		f := reject(outbox.ReasonESOther, classOther)
		f.unexpected = true
		return f
	}
	switch e.Type {
	case "version_conflict_engine_exception":
		if it.status == http.StatusConflict {
			return fate{outcome: outbox.NoOp(outbox.NoopAlreadyApplied), class: classConflict, held: e.heldVersion()}
		}
	case "index_not_found_exception", "index_closed_exception":
		return shared(outbox.ReasonESRequest, classIndex)
	case "illegal_argument_exception":
		if e.has("no write index") || e.lacksPipeline() {
			return shared(outbox.ReasonESRequest, classIndex)
		}
	case "cluster_block_exception":
		switch {
		case e.floodStage(), it.status == http.StatusTooManyRequests:
			return shared(outbox.ReasonES429, class429)
		case e.has("index write (api)"):
			return reject(outbox.ReasonES4xx, class4xx)
		case it.status >= 500:
			return shared(outbox.ReasonES5xx, class5xx)
		default:
			return shared(outbox.ReasonESRequest, classIndex)
		}
	case "fail_processor_exception": // comes with 500, although it is about the document
		return reject(outbox.ReasonES4xx, class4xx)
	case "security_exception":
		return shared(outbox.ReasonESRequest, classIndex)
	}
	switch {
	case it.status == http.StatusUnauthorized:
		return shared(outbox.ReasonESRequest, classIndex)
	case it.status == http.StatusTooManyRequests:
		return reject(outbox.ReasonES429, class429)
	case it.status == http.StatusRequestTimeout:
		return reject(outbox.ReasonESTimeout, classOther)
	case it.status >= 500:
		return reject(outbox.ReasonES5xx, class5xx)
	case it.status == http.StatusNotFound, it.status == http.StatusConflict:
		return unexpected()
	case it.status >= 400:
		return reject(outbox.ReasonES4xx, class4xx)
	default:
		return unexpected()
	}
}

// refusedWrongly makes a failure of a conflict with a document that is older than the version that was sent. Elasticsearch has
// compared another version, and the document lacks the change.
func refusedWrongly(f fate, sent int64) fate {
	if f.class != classConflict || f.held == 0 || f.held >= sent {
		return f
	}
	return fate{class: class4xx, outcome: outbox.Reject(outbox.ReasonES4xx, fmt.Sprintf(
		"refused as older than the document, which has version %d, and %d was sent: an ingest pipeline sets _version (`weft doctor` names it)", f.held, sent))}
}

// remedy is how to continue after a request without items.
type remedy uint8

const (
	giveUp  remedy = iota // report the fault for all documents of the request
	bisect                // too large or refused for one of its documents: send halves
	tooLong               // as bisect, and send smaller requests from now on
	cut                   // as bisect: the connection broke inside a large body
)

// problem is the fault of a request after which the fate of its items is unknown.
type problem struct {
	unanswered bool // no answer came, or 502 to 504 of one node of several: another node may give one
	do         remedy
	fault      outbox.Fault
}

func (p *problem) Error() string { return p.fault.Error() }

// largeBody is the size in bytes from which a connection that breaks while the body is
// sent counts as refused for its size: a server may close the connection instead of
// answering 413.
const largeBody = 1 << 20

// classifyError classifies requests without an answer:
//
//	no connection (DNS, refused, TLS, dial timeout)      es_connect, shared
//	a node of several answers 502 to 504                 es_5xx, shared, Retry-After
//	no answer within the deadline                        es_timeout, shared
//	connection broke inside a body of 1 MiB or more      bisect
//	connection broke otherwise                           es_connect, shared
//	the answer is another sender's or does not end, or   es_request_error, shared
//	the server is too old
//	anything else                                        es_other, shared
//
// After a timeout the fate is unknown. It counts as an outage, because the next request
// would probably hang as well.
func classifyError(err error, size, sent int) *problem {
	fault := func(r outbox.Reason) *problem {
		return &problem{fault: outbox.Fault{Reason: r, Shared: true, Err: err}}
	}
	var (
		op     *net.OpError
		netErr net.Error
		verify *tls.CertificateVerificationError
		record tls.RecordHeaderError
		shake  *handshakeError
		dns    *net.DNSError
		alone  *unavailable
	)
	switch {
	case errors.As(err, &alone):
		p := fault(outbox.ReasonES5xx)
		p.fault.RetryAfter = retryAfter(alone.header.Get("Retry-After"), time.Now())
		return p
	case errors.As(err, &op) && (op.Op == "dial" || op.Op == "proxyconnect"), errors.As(err, &dns), errors.Is(err, syscall.ECONNREFUSED),
		errors.As(err, &verify), errors.As(err, &record), errors.As(err, &shake):
		return fault(outbox.ReasonESConnect)
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &netErr) && netErr.Timeout():
		return fault(outbox.ReasonESTimeout)
	case broken(err):
		p := fault(outbox.ReasonESConnect)
		if size >= largeBody && sent > 0 {
			p.do = cut
		}
		return p
	case errors.Is(err, ErrProduct), errors.Is(err, ErrVersion), errors.Is(err, ErrTooLarge):
		return fault(outbox.ReasonESRequest)
	default:
		return fault(outbox.ReasonESOther)
	}
}

func broken(err error) bool {
	return errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed) ||
		bytes.Contains([]byte(err.Error()), []byte("server closed idle connection"))
}

// classifyStatus classifies requests that were answered with a status other than 2xx:
//
//	401, 403, 404        es_request_error, shared: credentials or name
//	408                  es_timeout, shared
//	413                  bisect
//	429                  es_429, shared, Retry-After
//	other 4xx            bisect: one document may be the cause
//	the same, but not    es_request_error, shared: something between weft and
//	of the server (own)  Elasticsearch, which cannot judge a document
//	5xx                  es_5xx, shared, Retry-After
//	anything else        es_other, shared
func classifyStatus(status int, header http.Header, body []byte, own bool, now time.Time) *problem {
	e := parseWhole(body)
	p := &problem{fault: outbox.Fault{
		Reason:     outbox.ReasonESRequest,
		Shared:     true,
		RetryAfter: retryAfter(header.Get("Retry-After"), now),
		Err:        fmt.Errorf("bulk request: %s", e.detail(status)),
	}}
	switch {
	case status == http.StatusUnauthorized, status == http.StatusForbidden, status == http.StatusNotFound:
	case status == http.StatusRequestTimeout:
		p.fault.Reason = outbox.ReasonESTimeout
	case status == http.StatusRequestEntityTooLarge:
		p.do = tooLong
	case status == http.StatusTooManyRequests:
		p.fault.Reason = outbox.ReasonES429
	case status >= 400 && status < 500 && !own:
		p.fault.Err = fmt.Errorf("%w: %w", p.fault.Err, ErrProduct)
	case status >= 400 && status < 500:
		p.do = bisect
	case status >= 500 && status < 600:
		p.fault.Reason = outbox.ReasonES5xx
	default:
		p.fault.Reason = outbox.ReasonESOther
	}
	return p
}

// maxRetryAfter bounds the wait that a server or proxy may ask for.
const maxRetryAfter = 5 * time.Minute

// retryAfter reads seconds or an HTTP date; 0 when the header has neither.
func retryAfter(v string, now time.Time) time.Duration {
	if v == "" {
		return 0
	}
	if s, err := strconv.ParseUint(v, 10, 32); err == nil {
		return min(time.Duration(s)*time.Second, maxRetryAfter)
	}
	if at, err := http.ParseTime(v); err == nil {
		return min(max(at.Sub(now), 0), maxRetryAfter)
	}
	return 0
}
