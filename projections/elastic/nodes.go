package elastic

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/elastic/elastic-transport-go/v8/elastictransport"
)

// nodes sends small requests to a cluster. What only reads is asked of one node after the
// other until one answers; what writes is sent once, as its caller decides about repeats.
type nodes struct {
	client *elastictransport.Client
	n      int
}

// Perform implements esapi.Transport.
func (c nodes) Perform(req *http.Request) (*http.Response, error) {
	if c.n == 1 || !reads(req) {
		return c.client.Perform(req)
	}
	var body []byte
	if req.Body != nil {
		var err error
		if body, err = io.ReadAll(req.Body); err != nil {
			return nil, fmt.Errorf("body of the request: %w", err)
		}
	}
	for node := 1; ; node++ {
		ctx, answered := c.share(req, node)
		try := req.Clone(ctx) // the client writes the node's address into it
		if req.Body != nil {
			try.Body = io.NopCloser(bytes.NewReader(body))
		}
		res, err := c.client.Perform(try)
		answered()
		if err == nil || node == c.n || req.Context().Err() != nil {
			return res, err
		}
	}
}

// share returns the context of a try, which ends where the node has not answered in half of the
// time that is left: one that is frozen must leave some to the others. A search may well take
// longer, and gets all of it.
func (c nodes) share(req *http.Request, node int) (try context.Context, answered func()) {
	ctx := req.Context()
	deadline, limited := ctx.Deadline()
	if !limited || node == c.n || req.Method == http.MethodPost {
		return ctx, func() {}
	}
	share := time.Until(deadline) / 2
	try, cancel := context.WithCancelCause(ctx) // ends with ctx: the body is still to be read
	silent := time.AfterFunc(share, func() { cancel(errSilent) })
	return try, func() { silent.Stop() }
}

var errSilent = errors.New("the node did not answer in its share of the time")

// setAside carries requests to one of several nodes. An answer of 502 to 504 is an error, so that the
// client leaves the node alone for a while: it may be cut off from a cluster that is well, or down behind its proxy. So
// is an answer of another server than the others are.
type setAside struct {
	http.RoundTripper
	stranger func(*http.Response) error
}

// RoundTrip implements [http.RoundTripper].
func (t setAside) RoundTrip(req *http.Request) (*http.Response, error) {
	res, err := t.RoundTripper.RoundTrip(req)
	if err != nil {
		return nil, withAddress(err, req.URL.Host)
	}
	if strange := t.stranger(res); strange != nil {
		_ = res.Body.Close()
		return nil, strange
	}
	if res.StatusCode < http.StatusBadGateway || res.StatusCode > http.StatusGatewayTimeout {
		return res, nil
	}
	defer func() { _ = res.Body.Close() }()
	body, _ := io.ReadAll(io.LimitReader(res.Body, maxRefusal)) // what came of it
	return nil, &unavailable{host: req.URL.Host, status: res.StatusCode, header: res.Header, body: body}
}

// withAddress adds an address to an error that names none.
func withAddress(err error, address string) error {
	text := err.Error()
	if strings.Contains(text, "Elasticsearch at ") || strings.Contains(address, ":") && strings.Contains(text, address) {
		return err
	}
	return fmt.Errorf("Elasticsearch at %s: %w", address, err)
}

// unavailable is a node's answer of 502 to 504.
type unavailable struct {
	host   string
	status int
	header http.Header
	body   []byte
}

// Error implements error.
func (u *unavailable) Error() string {
	e := parseWhole(u.body)
	return u.host + " answers " + e.detail(u.status)
}

// reads reports whether a request changes nothing.
func reads(req *http.Request) bool {
	return req.Method == http.MethodGet || req.Method == http.MethodHead ||
		req.Method == http.MethodPost && slices.ContainsFunc([]string{"/_search", "/_mget", "/_count"}, func(end string) bool { return strings.HasSuffix(req.URL.Path, end) })
}
