package bench

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"path/filepath"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/samuelhu324-dev/weft/internal/testenv/collector"
	"github.com/samuelhu324-dev/weft/internal/testenv/reconcile"
	"github.com/samuelhu324-dev/weft/internal/testenv/stack"
	"github.com/samuelhu324-dev/weft/projections/elastic"
)

const (
	rawIndex  = "bench-raw"
	weftIndex = "bench-weft"
	group     = "bench"

	reloadTimeout = 10 * time.Second

	// At rest is less than restShare of a core over restWindow.
	restShare   = 0.1
	restWindow  = 250 * time.Millisecond
	restTimeout = 10 * time.Second
)

// place is the servers of a run.
type place struct {
	servers *stack.Stack
	admin   *pgx.Conn
	es      *reconcile.Client
	log     string // of PostgreSQL
	schemas int    // made so far

	collector *collector.Collector // of traces
}

func openPlace(ctx context.Context, opts stack.Options) (p *place, err error) {
	p = &place{}
	if p.servers, err = stack.Start(ctx, opts); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.close())
		}
	}()
	if p.collector, err = collector.Start(ctx); err != nil {
		return p, err
	}
	if p.es, err = reconcile.NewClient(p.servers.ElasticURL()); err != nil {
		return p, err
	}
	if p.admin, err = connect(ctx, p.servers.DatabaseURL()); err != nil {
		return p, err
	}
	return p, p.logStatements(ctx)
}

func (p *place) close() error {
	var errs []error
	if p.collector != nil {
		p.collector.Close()
	}
	if p.admin != nil {
		errs = append(errs, p.admin.Close(context.Background()))
	}
	if p.es != nil {
		p.es.Close()
	}
	return errors.Join(append(errs, p.servers.Close())...)
}

// connect opens a session that leaves no trace in the log.
func connect(ctx context.Context, url string) (*pgx.Conn, error) {
	config, err := pgx.ParseConfig(url)
	if err != nil {
		return nil, fmt.Errorf("database URL: %w", err)
	}
	config.RuntimeParams["application_name"] = "weftlab"
	config.RuntimeParams["log_min_duration_statement"] = "-1"
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	return conn, nil
}

// logStatements makes the server write down each statement, its transaction and how
// long it took.
func (p *place) logStatements(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, reloadTimeout)
	defer cancel()
	for _, s := range []string{
		"alter system set log_line_prefix = '" + logPrefix + "'",
		"alter system set log_timezone = 'UTC'",
		"alter system set log_parameter_max_length = 0",
		"alter system set log_min_duration_statement = 0",
		"select pg_reload_conf()",
	} {
		if _, err := p.admin.Exec(ctx, s); err != nil {
			return fmt.Errorf("log statements: %w", err)
		}
	}
	for {
		var data, prefix string
		err := p.admin.QueryRow(ctx, "select current_setting('data_directory'), current_setting('log_line_prefix')").Scan(&data, &prefix)
		if err != nil {
			return fmt.Errorf("log statements: %w", err)
		}
		if prefix == logPrefix {
			p.log = filepath.Join(filepath.Dir(data), "server.log")
			return nil
		}
		if err := sleep(ctx, 10*time.Millisecond); err != nil {
			return fmt.Errorf("log statements: %w", err)
		}
	}
}

// newSchema returns a URL whose sessions have a new schema, and drop.
func (p *place) newSchema(ctx context.Context) (_ string, drop func(context.Context) error, err error) {
	p.schemas++
	name := fmt.Sprintf("bench_%d", p.schemas)
	u, err := url.Parse(p.servers.DatabaseURL())
	if err != nil {
		return "", nil, fmt.Errorf("database URL: %w", err)
	}
	q := u.Query()
	q.Set("search_path", name)
	u.RawQuery = q.Encode()
	exec := func(ctx context.Context, sql string) error {
		ctx, cancel := context.WithTimeout(ctx, queryTimeout)
		defer cancel()
		if _, err := p.admin.Exec(ctx, sql); err != nil {
			return fmt.Errorf("%s: %w", sql, err)
		}
		return nil
	}
	drop = func(ctx context.Context) error {
		return exec(context.WithoutCancel(ctx), "drop schema "+name+" cascade")
	}
	return u.String(), drop, exec(ctx, "create schema "+name)
}

// makeIndex makes the index that weft would make.
func (p *place) makeIndex(ctx context.Context, name string) error {
	sink, err := elastic.New(elastic.Config{URLs: []string{p.servers.ElasticURL()}, Index: name},
		zap.NewNop(), prometheus.NewRegistry(), "bench")
	if err != nil {
		return err
	}
	defer sink.Close()
	return sink.EnsureIndex(ctx)
}

// dropIndex removes what name stands for, if there is anything.
func (p *place) dropIndex(ctx context.Context, name string) error {
	var found map[string]struct{}
	err := p.es.Do(ctx, http.MethodGet, "/"+name+"*/_settings?filter_path=*.settings.index.uuid", nil, &found)
	for index := range found {
		err = errors.Join(err, p.es.Do(ctx, http.MethodDelete, "/"+url.PathEscape(index), nil, nil))
	}
	if err != nil {
		return fmt.Errorf("delete index %s: %w", name, err)
	}
	return nil
}

// documents counts those of an index.
func (p *place) documents(ctx context.Context, name string) (int, error) {
	var answer struct {
		Count int `json:"count"`
	}
	if err := p.es.Do(ctx, http.MethodPost, "/"+name+"/_refresh", nil, nil); err != nil {
		return 0, fmt.Errorf("refresh %s: %w", name, err)
	}
	if err := p.es.Do(ctx, http.MethodGet, "/"+name+"/_count", nil, &answer); err != nil {
		return 0, fmt.Errorf("count %s: %w", name, err)
	}
	return answer.Count, nil
}

// rest waits until neither server has anything to do; one that never stops has waited
// long enough after restTimeout.
func (p *place) rest(ctx context.Context) error {
	if _, err := p.admin.Exec(ctx, "checkpoint"); err != nil {
		return fmt.Errorf("checkpoint: %w", err)
	}
	for began := time.Now(); time.Since(began) < restTimeout; {
		before, err := p.serversCPU()
		if err != nil {
			return err
		}
		if err := sleep(ctx, restWindow); err != nil {
			return err
		}
		after, err := p.serversCPU()
		if err != nil {
			return err
		}
		if after.postgres+after.elastic-before.postgres-before.elastic < restShare*restWindow.Seconds() {
			return nil
		}
	}
	return nil
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}
