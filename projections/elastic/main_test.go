package elastic

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap/zaptest"

	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/outbox"
	"github.com/samuelhu324-dev/weft/projections/elastic/elastictest"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// leading returns a context with an authority that holds.
func leading(tb testing.TB) context.Context {
	return outbox.WithAuthority(tb.Context(), outbox.Authority{Group: "g", Epoch: 1, Check: func() error { return nil }})
}

// newSink returns a Sink with cfg and the registry of its metrics.
func newSink(tb testing.TB, cfg Config) (*Sink, *prometheus.Registry) {
	tb.Helper()
	cfg.RequestTimeout = cmp.Or(cfg.RequestTimeout, patient)
	reg := prometheus.NewRegistry()
	s, err := New(cfg, zaptest.NewLogger(tb), reg, "p")
	if err != nil {
		tb.Fatalf("New: %v", err)
	}
	tb.Cleanup(s.Close)
	return s, reg
}

// patient is a request timeout for a machine that may stand still.
const patient = time.Minute

// ready is what a look at the index says that was answered in its time.
func ready(t *testing.T, s *Sink) (err error) {
	t.Helper()
	testenv.Eventually(t, func() bool {
		err = s.Ready(t.Context())
		return !errors.Is(err, context.DeadlineExceeded)
	}, "an answer within the time of a look")
	return err
}

// fakeSink returns a Sink on a fake server.
func fakeSink(tb testing.TB, change func(*Config)) (*Sink, *elastictest.Server, *prometheus.Registry) {
	tb.Helper()
	srv := elastictest.New(tb)
	cfg := Config{URLs: []string{srv.URL}, Index: "docs"}
	if change != nil {
		change(&cfg)
	}
	s, reg := newSink(tb, cfg)
	return s, srv, reg
}

// docs returns n small documents of version 1 with ids d0, d1 …
func docs(n int) []Action {
	out := make([]Action, n)
	for i := range out {
		out[i] = Action{ID: fmt.Sprintf("d%d", i), Version: 1, Body: []byte(`{"text":"x"}`)}
	}
	return out
}

// sized returns a document whose body has about n bytes.
func sized(id string, n int) Action {
	body := make([]byte, n)
	for i := range body {
		body[i] = 'a'
	}
	copy(body, `{"text":"`)
	copy(body[n-2:], `"}`)
	return Action{ID: id, Version: 1, Body: body}
}

func repeat(o outbox.Outcome, n int) []outbox.Outcome {
	out := make([]outbox.Outcome, n)
	for i := range out {
		out[i] = o
	}
	return out
}
