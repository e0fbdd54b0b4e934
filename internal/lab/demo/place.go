package demo

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/samuelhu324-dev/weft/internal/postgres"
	"github.com/samuelhu324-dev/weft/internal/testenv/reconcile"
	"github.com/samuelhu324-dev/weft/internal/testenv/stack"
)

const cleanTimeout = 20 * time.Second

// place is where the demo works: its own servers, or a corner of the user's.
type place struct {
	databaseURL string
	elasticURL  string
	index       string
	group       string

	stack  *stack.Stack // nil when both servers are the user's
	schema string       // to be dropped at the end; empty when the server goes
	base   string       // the URL without the schema
}

// openPlace starts what the user has not named.
func openPlace(ctx context.Context, databaseURL, elasticURL string, progress io.Writer) (*place, error) {
	ours := databaseURL == "" || elasticURL == ""
	servers, err := stack.Start(ctx, stack.Options{Progress: progress, DatabaseURL: databaseURL, ElasticURL: elasticURL})
	if err != nil {
		return nil, err
	}
	p := &place{databaseURL: servers.DatabaseURL(), elasticURL: servers.ElasticURL(), index: "weft-demo", group: "weft"}
	if ours {
		p.stack = servers
	}
	var random [4]byte
	_, _ = rand.Read(random[:])
	suffix := hex.EncodeToString(random[:])
	if elasticURL != "" {
		p.index += "-" + suffix
	}
	if databaseURL != "" {
		if err := p.ownSchema(ctx, suffix); err != nil {
			return nil, errors.Join(err, servers.Close())
		}
	}
	return p, nil
}

// ownSchema makes a schema and points databaseURL at it. The group is the demo's own,
// too: the lock of a group is one per database.
func (p *place) ownSchema(ctx context.Context, suffix string) error {
	base, err := postgres.Normalize(p.databaseURL)
	if err != nil {
		return fmt.Errorf("DATABASE_URL: %w", err)
	}
	u, err := url.Parse(base)
	if err != nil || u.Scheme == "" {
		return errors.New("DATABASE_URL: the demo needs it in URL form")
	}
	p.base, p.group = base, "demo-"+suffix
	schema := "weft_demo_" + suffix
	if err := execute(ctx, base, "create schema "+schema); err != nil {
		return fmt.Errorf("make a schema of its own: %w", err)
	}
	p.schema = schema
	q := u.Query()
	q.Set("search_path", schema)
	u.RawQuery = q.Encode()
	p.databaseURL = u.String()
	return nil
}

func execute(ctx context.Context, url, sql string) error {
	ctx, cancel := context.WithTimeout(ctx, cleanTimeout)
	defer cancel()
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	_, err = conn.Exec(ctx, sql)
	return err
}

// close stops the demo's servers and removes what it made on the user's.
func (p *place) close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, cleanTimeout)
	defer cancel()
	var errs []error
	if p.schema != "" {
		if err := execute(ctx, p.base, "drop schema "+p.schema+" cascade"); err != nil {
			errs = append(errs, fmt.Errorf("drop schema %s: %w", p.schema, err))
		}
	}
	if p.stack == nil || p.index != "weft-demo" {
		if err := deleteIndices(ctx, p.elasticURL, p.index); err != nil {
			errs = append(errs, fmt.Errorf("delete index %s: %w", p.index, err))
		}
	}
	if p.stack != nil {
		errs = append(errs, p.stack.Close())
	}
	return errors.Join(errs...)
}

// deleteIndices deletes those whose name begins with prefix, by their full names: a
// server may refuse wildcards.
func deleteIndices(ctx context.Context, elasticURL, prefix string) error {
	es, err := reconcile.NewClient(elasticURL)
	if err != nil {
		return err
	}
	defer es.Close()
	var found map[string]json.RawMessage
	if err := es.Do(ctx, http.MethodGet, "/"+prefix+"*/_settings?expand_wildcards=all&filter_path=*.settings.index.uuid", nil, &found); err != nil {
		return err
	}
	var errs []error
	for name := range found {
		errs = append(errs, es.Do(ctx, http.MethodDelete, "/"+url.PathEscape(name), nil, nil))
	}
	return errors.Join(errs...)
}
