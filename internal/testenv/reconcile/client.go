package reconcile

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"
)

// Client is a plain HTTP client of Elasticsearch. It is safe for concurrent use.
type Client struct {
	base *url.URL
	http *http.Client
}

// NewClient returns a client of the server at base, whose user information, if it
// has some, is sent as basic authentication. Close it.
func NewClient(base string) (*Client, error) {
	u, err := url.Parse(base)
	if err != nil || u.Host == "" {
		return nil, fmt.Errorf("elasticsearch URL: want http://host:port")
	}
	return &Client{base: u, http: &http.Client{Transport: &http.Transport{}, Timeout: 30 * time.Second}}, nil
}

// Close closes idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// StatusError is an answer other than 2xx.
type StatusError struct {
	Code int
	Body string // the first 500 bytes
}

// Error implements error.
func (e *StatusError) Error() string {
	return fmt.Sprintf("elasticsearch answers %d: %s", e.Code, e.Body)
}

// Do sends in, if not nil, as JSON and decodes the answer into out, if not nil; numbers
// in an interface become json.Number. path may carry a query. An answer other than
// 2xx is a *StatusError.
func (c *Client) Do(ctx context.Context, method, path string, in, out any) error {
	var body io.Reader
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return err
		}
		body = bytes.NewReader(b)
	}
	ref, err := url.Parse(path)
	if err != nil {
		return err
	}
	target := c.base.JoinPath(ref.Path)
	target.RawQuery = ref.RawQuery
	req, err := http.NewRequestWithContext(ctx, method, target.String(), body)
	if err != nil {
		return err
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	res, err := c.http.Do(req)
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
