package sigv4

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap/zaptest"

	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/outbox"
	"github.com/samuelhu324-dev/weft/projections/elastic"
	"github.com/samuelhu324-dev/weft/projections/elastic/elastictest"
)

func TestMain(m *testing.M) { testenv.MainNoServers(m) }

const empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

// The signatures are those that Amazon publishes for these requests.
func TestSignaturesOfTheDocumentation(t *testing.T) {
	t.Parallel()
	at := time.Date(2015, 8, 30, 12, 36, 0, 0, time.UTC)
	for name, c := range map[string]struct{ service, url, kind, want string }{
		"Plain": {"service", "https://example.amazonaws.com/", "", "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31"},
		"Query": {"iam", "https://iam.amazonaws.com/?Action=ListUsers&Version=2010-05-08", "application/x-www-form-urlencoded; charset=utf-8",
			"5d672d79c15b13162d9279b0855cfba6789a8edb4c82c400e06b5924a6f2b5d7"},
	} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, c.url, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		if c.kind != "" {
			req.Header.Set("Content-Type", c.kind)
		}
		s := Signer{Region: "us-east-1", Service: c.service}
		s.sign(req, Credentials{AccessKey: "AKIDEXAMPLE", SecretKey: "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"}, empty, at)
		if got := req.Header.Get("Authorization"); !strings.HasSuffix(got, "Signature="+c.want) {
			t.Errorf("%s: got %q, want signature %s", name, got, c.want)
		}
	}
}

// A sink writes through the signer: every request is signed, and arrives whole.
func TestSinkWritesSigned(t *testing.T) {
	t.Parallel()
	fake := elastictest.New(t)
	seen := 0
	gate := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen++
		body, err := io.ReadAll(r.Body)
		sum := sha256.Sum256(body)
		if err != nil || r.Header.Get("X-Amz-Content-Sha256") != hex.EncodeToString(sum[:]) {
			t.Errorf("%s %s: the hash is not that of its %d bytes (%v)", r.Method, r.URL.Path, len(body), err)
		}
		auth := r.Header.Get("Authorization")
		if !strings.Contains(auth, "/eu-west-1/es/aws4_request") || !strings.Contains(auth, "x-amz-security-token") {
			t.Errorf("%s %s: got %q", r.Method, r.URL.Path, auth)
		}
		forward, _ := http.NewRequestWithContext(r.Context(), r.Method, fake.URL+r.URL.RequestURI(), strings.NewReader(string(body)))
		forward.Close = true
		res, err := http.DefaultClient.Do(forward)
		if err != nil {
			t.Error(err)
			return
		}
		defer res.Body.Close()
		for name, values := range res.Header {
			w.Header()[name] = values
		}
		w.WriteHeader(res.StatusCode)
		_, _ = io.Copy(w, res.Body)
	}))
	t.Cleanup(gate.Close)
	next := &http.Transport{}
	signer := &Signer{Region: "eu-west-1", Service: "es", Next: next, Credentials: func(context.Context) (Credentials, error) {
		return Credentials{"key", "secret", "session"}, nil
	}}
	sink, err := elastic.New(elastic.Config{URLs: []string{gate.URL}, Index: "docs", Transport: signer}, zaptest.NewLogger(t), prometheus.NewRegistry(), "p")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(sink.Close)
	ctx := outbox.WithAuthority(t.Context(), outbox.Authority{Group: "g", Epoch: 1, Check: func() error { return nil }})
	got, err := sink.Write(ctx, []elastic.Action{{ID: "a", Version: 1, Body: []byte(`{"text":"x"}`)}, {ID: "b", Version: 1, Delete: true}})
	if err != nil || len(got) != 2 || got[0].Verdict != outbox.Done {
		t.Fatalf("got %+v, %v", got, err)
	}
	if doc, ok := fake.Doc("a"); !ok || doc.Version != 1 || seen < 2 {
		t.Errorf("got %+v after %d requests, want the document", doc, seen)
	}
}
