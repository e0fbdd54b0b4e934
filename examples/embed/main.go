// Command embed is a program that has weft inside: it serves its own pages, and carries the
// changes of its tables into Elasticsearch beside that. The tables are in schema.sql, what
// is projected is in weft.yaml, and DATABASE_URL and ELASTIC_URL say where.
//
// Several of these programs may run at once. One of them leads; the others take over when it
// stops.
package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/samuelhu324-dev/weft"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := start(ctx); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func start(ctx context.Context) error {
	log, err := zap.NewProduction()
	if err != nil {
		return err
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:8080")
	if err != nil {
		return err
	}
	return run(ctx, listener, weft.Source{File: "weft.yaml", Environ: os.Environ()}, log)
}

// run serves until ctx ends, and then lets weft settle what is in flight.
func run(ctx context.Context, listener net.Listener, source weft.Source, log *zap.Logger) error {
	settings, err := weft.LoadSettings(source)
	if err != nil {
		return err
	}
	metrics := prometheus.NewRegistry()
	w := weft.New(weft.Options{Settings: settings, Logger: log, Registerer: metrics})

	mux := http.NewServeMux()
	mux.Handle("/metrics", promhttp.HandlerFor(metrics, promhttp.HandlerOpts{}))
	mux.Handle("/health/", w.Health())
	mux.HandleFunc("/", func(out http.ResponseWriter, _ *http.Request) { fmt.Fprintln(out, "a shop") })
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}

	all, ctx := errgroup.WithContext(ctx)
	all.Go(func() error { return w.Run(ctx) })
	all.Go(func() error {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	})
	all.Go(func() error {
		<-ctx.Done()
		grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		return server.Shutdown(grace)
	})
	return all.Wait()
}
