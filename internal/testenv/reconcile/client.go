package reconcile

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"time"
)

const (
	timeout = time.Minute // a busy server may stand still for seconds
	// nodeTimeout is for each of several nodes, before another one is asked.
	nodeTimeout = 5 * time.Second
)

// Client is a plain HTTP client of Elasticsearch, or of another server that speaks JSON. It is safe for concurrent use.
type Client struct {
	HTTP *http.Client // another one may be set before the first request

	nodes []*url.URL
	good  atomic.Int64 // the node that has answered last
}

// NewClient returns a client of the server at base, whose user information, if it
// has some, is sent as basic authentication. Several nodes are separated by commas: one after
// the other is asked until one answers, with anything but 503. Close it.
func NewClient(base string) (*Client, error) {
	c := &Client{HTTP: &http.Client{Transport: &http.Transport{}, Timeout: timeout}}
	for raw := range strings.SplitSeq(base, ",") {
		u, err := url.Parse(raw)
		if err != nil || u.Host == "" {
			return nil, errors.New("URL: want http://host:port")
		}
		c.nodes = append(c.nodes, u)
	}
	if len(c.nodes) > 1 {
		c.HTTP.Timeout = nodeTimeout
	}
	return c, nil
}

// Close closes idle connections.
func (c *Client) Close() { c.HTTP.CloseIdleConnections() }

// StatusError is an answer other than 2xx.
type StatusError struct {
	Code int
	Body string // the first 500 bytes
}

// Error implements error.
func (e *StatusError) Error() string {
	return fmt.Sprintf("the server answers %d: %s", e.Code, e.Body)
}

// Do sends in, if not nil, as JSON and decodes the answer into out, if not nil; numbers
// in an interface become json.Number. path may carry a query. An answer other than
// 2xx is a *StatusError.
func (c *Client) Do(ctx context.Context, method, path string, in, out any) error {
	var body []byte
	if in != nil {
		var err error
		if body, err = json.Marshal(in); err != nil {
			return err
		}
	}
	ref, err := url.Parse(path)
	if err != nil {
		return err
	}
	first := c.good.Load()
	for try := range int64(len(c.nodes)) {
		node := (first + try) % int64(len(c.nodes))
		err = c.ask(ctx, c.nodes[node], method, ref, body, out)
		status, answered := err.(*StatusError) //nolint:errorlint // as ask returns it
		if err == nil || ctx.Err() != nil || answered && status.Code != http.StatusServiceUnavailable {
			c.good.Store(node)
			return err
		}
	}
	return err
}

func (c *Client) ask(ctx context.Context, node *url.URL, method string, ref *url.URL, in []byte, out any) error {
	target := node.JoinPath(ref.Path)
	target.RawQuery = ref.RawQuery
	req, err := http.NewRequestWithContext(ctx, method, target.String(), bytes.NewReader(in))
	if err != nil {
		return err
	}
	if in != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	res, err := c.HTTP.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode/100 != 2 {
		text, _ := io.ReadAll(io.LimitReader(res.Body, 500))
		return &StatusError{Code: res.StatusCode, Body: string(text)}
	}
	if out == nil {
		_, err := io.Copy(io.Discard, res.Body)
		return err
	}
	dec := json.NewDecoder(res.Body)
	dec.UseNumber()
	return dec.Decode(out)
}

// Indices returns the full names of the indices whose name begins with prefix.
func (c *Client) Indices(ctx context.Context, prefix string) (names []string, err error) {
	var found map[string]json.RawMessage
	err = c.Do(ctx, http.MethodGet, "/"+prefix+"*/_settings?expand_wildcards=all&filter_path=*.settings.index.uuid", nil, &found)
	if err != nil {
		return nil, fmt.Errorf("list indices %s: %w", prefix, err)
	}
	return slices.Sorted(maps.Keys(found)), nil
}

// DeleteIndices deletes them by their full names: a server may refuse wildcards, and an alias cannot be
// deleted as if it were its index.
func (c *Client) DeleteIndices(ctx context.Context, prefix string) error {
	names, err := c.Indices(ctx, prefix)
	if err != nil {
		return err
	}
	var errs []error
	for _, name := range names {
		if err := c.Do(ctx, http.MethodDelete, "/"+url.PathEscape(name)+"?ignore_unavailable=true", nil, nil); err != nil {
			errs = append(errs, fmt.Errorf("delete index %s: %w", name, err))
		}
	}
	return errors.Join(errs...)
}
