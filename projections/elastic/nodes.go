package elastic

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"

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
		try := req.Clone(req.Context()) // the client writes the node's address into it
		if req.Body != nil {
			try.Body = io.NopCloser(bytes.NewReader(body))
		}
		res, err := c.client.Perform(try)
		if err == nil || node == c.n || req.Context().Err() != nil {
			return res, err
		}
	}
}

// reads reports whether a request changes nothing.
func reads(req *http.Request) bool {
	return req.Method == http.MethodGet || req.Method == http.MethodHead ||
		req.Method == http.MethodPost && slices.ContainsFunc([]string{"/_search", "/_mget", "/_count", "/_pit", "/_search/point_in_time"}, func(end string) bool { return strings.HasSuffix(req.URL.Path, end) })
}
