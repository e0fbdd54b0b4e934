package main

import (
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/zap/zaptest"

	"github.com/samuelhu324-dev/weft"
	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/migrations"
)

func TestMain(m *testing.M) { testenv.Main(m) }

func file(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func get(t *testing.T, url string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	res, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(body)
}

func TestProgramServesAndCarriesItsChanges(t *testing.T) {
	t.Parallel()
	dsn, index := testenv.Database(t), testenv.Index(t)
	pool := testenv.Pool(t, dsn)
	exec := func(sql string) {
		if _, err := pool.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	exec(file(t, "schema.sql"))
	if _, err := migrations.CreateOutbox(t.Context(), dsn, migrations.OutboxSpec{Table: "shop.product"}, true); err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(t.TempDir(), "weft.yaml")
	text := strings.ReplaceAll(file(t, "weft.yaml"), "{name: products}", "{name: "+index+"}")
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	source := weft.Source{File: config, Environ: []string{"DATABASE_URL=" + dsn, "ELASTIC_URL=" + testenv.ElasticURL(t)}}
	go func() { done <- run(ctx, listener, source, zaptest.NewLogger(t)) }()

	base := "http://" + listener.Addr().String()
	testenv.Eventually(t, func() bool {
		status, _ := get(t, base+"/health/ready")
		return status == http.StatusOK
	}, "the program to be ready")
	exec("insert into shop.product values (7, 'reading lamp', 12.50)")
	testenv.Eventually(t, func() bool {
		_, body := get(t, testenv.ElasticURL(t)+"/"+index+"/_source/7")
		return body == `{"name":"reading lamp","price":12.50}`
	}, "the product in the index")
	if _, body := get(t, base+"/"); body != "a shop\n" {
		t.Errorf("its own page says %q", body)
	}
	testenv.Eventually(t, func() bool {
		_, body := get(t, base+"/metrics")
		return strings.Contains(body, `outbox_processed_total{component="worker",env="unknown",op="upsert",projection="products"} 1`)
	}, "the event in the metrics")
	cancel()
	if err := <-done; err != nil {
		t.Errorf("run: got %v, want nil after a graceful end", err)
	}
}
