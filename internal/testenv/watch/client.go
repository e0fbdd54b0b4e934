package watch

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"
)

const (
	askBound    = 10 * time.Second
	answerLimit = 64 << 20
)

// client asks a server whose answers carry what was asked for in "data".
type client struct {
	name string
	http *http.Client
}

// newClient keeps no connection, so that none is taken for a leak.
func newClient(name string) *client {
	return &client{name, &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: askBound}}
}

func loopback(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// get reads the data of an answer into data, unless that is nil.
func (c *client) get(ctx context.Context, url string, data any) (http.Header, error) {
	header, body, err := c.do(ctx, url)
	if err == nil && data != nil {
		err = json.Unmarshal(body, &struct {
			Data any `json:"data"`
		}{data})
	}
	if err != nil {
		return nil, fmt.Errorf("ask %s: %w", c.name, err)
	}
	return header, nil
}

func (c *client) do(ctx context.Context, url string) (http.Header, []byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, nil, err
	}
	response, err := c.http.Do(request)
	if err != nil {
		return nil, nil, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, answerLimit))
	if err != nil {
		return nil, nil, err
	}
	if response.StatusCode != http.StatusOK {
		return nil, nil, fmt.Errorf("%s: %s", response.Status, body)
	}
	return response.Header, body, nil
}
