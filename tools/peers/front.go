package main

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"time"
)

const (
	frontConnections = 32
	headerTimeout    = 10 * time.Second
)

// front passes all requests on to an Elasticsearch and answers GET / itself: the build that the
// stack starts lacks that answer, and PGSync's client asks for it first.
type front struct {
	url    string
	server *http.Server
	ended  chan error
}

// openFront starts a front on a loopback port.
func openFront(ctx context.Context, elasticURL, version string) (*front, error) {
	target, err := url.Parse(elasticURL)
	if err != nil {
		return nil, err
	}
	type m = map[string]any
	info, err := json.Marshal(m{
		"name": "peers", "cluster_name": "peers", "tagline": "You Know, for Search",
		"version": m{"number": version, "build_flavor": "default", "minimum_wire_compatibility_version": "7.17.0"},
	})
	if err != nil {
		return nil, err
	}
	pass := &httputil.ReverseProxy{
		Rewrite:   func(r *httputil.ProxyRequest) { r.SetURL(target) },
		Transport: &http.Transport{MaxIdleConnsPerHost: frontConnections, DisableCompression: true},
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp4", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	f := &front{url: "http://" + listener.Addr().String(), ended: make(chan error, 1)}
	f.server = &http.Server{ReadHeaderTimeout: headerTimeout, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/" {
			pass.ServeHTTP(w, r)
			return
		}
		w.Header().Set("X-Elastic-Product", "Elasticsearch")
		w.Header().Set("Content-Type", "application/json")
		if r.Method == http.MethodGet {
			_, _ = w.Write(info) // the client is told by its connection
		}
	})}
	go func() { f.ended <- f.server.Serve(listener) }()
	return f, nil
}

// close ends the front, and returns why it has ended if that was before.
func (f *front) close() error {
	err := f.server.Close()
	if ended := <-f.ended; !errors.Is(ended, http.ErrServerClosed) {
		err = errors.Join(err, ended)
	}
	return err
}
