package chaos

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"path/filepath"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samuelhu324-dev/weft/internal/testenv/reconcile"
	"github.com/samuelhu324-dev/weft/internal/testenv/stack"
)

const defaultIndex = "weft-chaos"

// place is the servers of a run and direct ways to them, past all faults.
type place struct {
	servers     *stack.Stack // nil when they are the caller's
	databaseURL string
	elasticURL  string
	index       string
	pool        *pgxpool.Pool
	es          *reconcile.Client
}

// openPlace starts the servers, unless the caller has named both.
func openPlace(ctx context.Context, opts Options) (p *place, err error) {
	p = &place{databaseURL: opts.DatabaseURL, elasticURL: opts.ElasticURL, index: opts.Index}
	if p.index == "" {
		p.index = defaultIndex
	}
	if p.databaseURL == "" || p.elasticURL == "" {
		p.servers, err = stack.Start(ctx, stack.Options{Progress: opts.Progress, HeapMB: opts.HeapMB})
		if err != nil {
			return nil, err
		}
		p.databaseURL, p.elasticURL = p.servers.DatabaseURL(), p.servers.ElasticURL()
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.close())
		}
	}()
	config, err := pgxpool.ParseConfig(p.databaseURL)
	if err != nil {
		return nil, fmt.Errorf("database URL: %w", err)
	}
	config.MaxConns = writers + 8
	config.ConnConfig.RuntimeParams["application_name"] = "weftlab"
	if p.pool, err = pgxpool.NewWithConfig(ctx, config); err != nil {
		return nil, fmt.Errorf("open pool: %w", err)
	}
	p.es, err = reconcile.NewClient(p.elasticURL)
	return p, err
}

func (p *place) close() error {
	if p.pool != nil {
		p.pool.Close()
	}
	if p.es != nil {
		p.es.Close()
	}
	if p.servers != nil {
		return p.servers.Close()
	}
	return nil
}

// probeIndex is where it is tried whether Elasticsearch takes writes.
func (p *place) probeIndex() string { return p.index + "-probe" }

func (p *place) makeProbe(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	settings := map[string]any{"settings": map[string]any{"number_of_replicas": 0}}
	if err := p.es.Do(ctx, http.MethodPut, "/"+url.PathEscape(p.probeIndex()), settings, nil); err != nil {
		return fmt.Errorf("make an index to probe: %w", err)
	}
	return nil
}

// probeElastic writes to an index of its own, and asks whether the primary shard of
// weft's has started.
func (p *place) probeElastic(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	if err := p.es.Do(ctx, http.MethodPut, "/"+url.PathEscape(p.probeIndex())+"/_doc/1?timeout=1s", map[string]any{"here": true}, nil); err != nil {
		return err
	}
	return p.es.Do(ctx, http.MethodGet, "/_cluster/health/"+url.PathEscape(p.index)+"?wait_for_status=yellow&timeout=1s", nil, nil)
}

func (p *place) probePostgres(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	conn, err := pgx.Connect(ctx, p.databaseURL)
	if err != nil {
		return err
	}
	return conn.Close(ctx)
}

// serverLogs returns the logs of the servers by name, as far as they are ours and on
// this machine.
func (p *place) serverLogs(ctx context.Context) (map[string]string, error) {
	if p.servers == nil {
		return nil, nil
	}
	var data string
	if err := p.pool.QueryRow(ctx, "show data_directory").Scan(&data); err != nil {
		return nil, fmt.Errorf("find the servers' logs: %w", err)
	}
	dir := filepath.Dir(filepath.Dir(data))
	return map[string]string{
		"postgres.log": filepath.Join(dir, "postgres", "server.log"),
		"elastic.log":  filepath.Join(dir, "elastic", "server.log"),
	}, nil
}
