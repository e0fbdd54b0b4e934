package drill

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
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samuelhu324-dev/weft/internal/lab/sentinel"
	"github.com/samuelhu324-dev/weft/internal/postgres"
	"github.com/samuelhu324-dev/weft/internal/testenv/reconcile"
	"github.com/samuelhu324-dev/weft/internal/testenv/stack"
)

const (
	schemaPrefix = "weft_drill_"
	indexPrefix  = "weft-drill-"
	groupPrefix  = "drill-"
	appName      = "weftlab"
	suffixLength = 8

	tidyBound = 30 * time.Second
)

// place is the servers that drills run on, and the right to run there.
type place struct {
	servers     *stack.Stack
	base        string // URL of the database, as weft understands it
	elasticURL  string
	want        string // environment that the caller expects; may be empty
	environment string
	pool        *pgxpool.Pool // of base
	es          *reconcile.Client
	own         struct{ postgres, elastic bool } // started here
}

// openPlace starts the servers that the caller has not named, and makes sure that drills
// may run there.
func openPlace(ctx context.Context, databaseURL, elasticURL, want string, opts stack.Options) (p *place, err error) {
	opts.DatabaseURL, opts.ElasticURL = databaseURL, elasticURL
	p = &place{want: want}
	p.own.postgres, p.own.elastic = databaseURL == "", elasticURL == ""
	if p.servers, err = stack.Start(ctx, opts); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.close())
		}
	}()
	p.elasticURL = p.servers.ElasticURL()
	if p.base, err = postgres.Normalize(p.servers.DatabaseURL()); err != nil {
		return p, fmt.Errorf("DATABASE_URL: %w", err)
	}
	if u, err := url.Parse(p.base); err != nil || u.Scheme == "" {
		return p, errors.New("DATABASE_URL: drills need it in URL form")
	}
	if p.pool, err = openPool(ctx, p.base, 2); err != nil {
		return p, err
	}
	if p.es, err = reconcile.NewClient(p.elasticURL); err != nil {
		return p, err
	}
	return p, p.guard(ctx)
}

func openPool(ctx context.Context, url string, conns int32) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, fmt.Errorf("database URL: %w", err)
	}
	config.MaxConns = conns
	config.ConnConfig.RuntimeParams["application_name"] = appName
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("open pool: %w", err)
	}
	return pool, nil
}

func (p *place) close() error {
	if p.pool != nil {
		p.pool.Close()
	}
	if p.es != nil {
		p.es.Close()
	}
	return p.servers.Close()
}

// guard returns an error unless the database is of environment test or dev, and of the
// one that the caller expects.
func (p *place) guard(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, queryBound)
	defer cancel()
	var err error
	p.environment, err = sentinel.Check(ctx, p.pool, p.want)
	return err
}

// corner is what a run has of a place: a schema, an index and a group of its own.
type corner struct {
	*place
	schema, index, group string
	databaseURL          string        // with the schema
	pool                 *pgxpool.Pool // of databaseURL
	session              *pgx.Conn     // holds the lock that says that the run lives
}

// occupied is the key of the lock that a run holds on its schema.
const occupied = `select pg_try_advisory_lock(hashtextextended('weftlab ' || $1, 0))`

// sentinelTable is the application's, for the guard of weft, which sees the schema only.
const sentinelTable = `
create table environment_sentinel (
  id integer primary key, project text not null default 'wordloom', env text not null, created_at timestamptz not null default now()
)`

// newCorner makes the schema. The index is weft's to make.
func (p *place) newCorner(ctx context.Context, scenario string) (c *corner, err error) {
	var random [suffixLength / 2]byte
	_, _ = rand.Read(random[:])
	suffix := hex.EncodeToString(random[:])
	c = &corner{
		place: p, schema: schemaPrefix + scenario + "_" + suffix, index: indexPrefix + scenario + "-" + suffix, group: groupPrefix + suffix,
	}
	u, err := url.Parse(p.base)
	if err != nil {
		return nil, errors.New("database: want a URL")
	}
	q := u.Query()
	q.Set("search_path", c.schema)
	u.RawQuery = q.Encode()
	c.databaseURL = u.String()
	defer func() {
		if err != nil {
			err = errors.Join(err, c.close(ctx))
		}
	}()
	limited, cancel := context.WithTimeout(ctx, queryBound)
	defer cancel()
	if c.session, err = pgx.Connect(limited, p.base); err != nil {
		return c, fmt.Errorf("connect: %w", err)
	}
	var held bool
	if err := c.session.QueryRow(limited, occupied, c.schema).Scan(&held); err != nil || !held {
		return c, fmt.Errorf("lock the run's schema: held %v: %w", held, err)
	}
	if err := p.guard(ctx); err != nil {
		return c, err
	}
	if _, err := c.session.Exec(limited, "create schema "+c.schema); err != nil {
		return c, fmt.Errorf("make a schema of its own: %w", err)
	}
	if c.pool, err = openPool(ctx, c.databaseURL, 10); err != nil {
		return c, err
	}
	if _, err := c.pool.Exec(limited, sentinelTable); err != nil {
		return c, fmt.Errorf("sentinel of the schema: %w", err)
	}
	if _, err := c.pool.Exec(limited, `insert into environment_sentinel (id, env) values (1, $1)`, c.environment); err != nil {
		return c, fmt.Errorf("sentinel of the schema: %w", err)
	}
	return c, nil
}

// close removes what the run has made.
func (c *corner) close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), tidyBound)
	defer cancel()
	var errs []error
	if c.pool != nil {
		c.pool.Close()
		errs = append(errs, c.remove(ctx, c.schema, c.index, c.group))
	}
	if c.session != nil {
		_ = c.session.Close(ctx)
	}
	return errors.Join(errs...)
}

// remove takes a corner away: its index with any block on it, the sessions of its group,
// and last its schema, by which the rest is found. What is gone already is not missed.
func (p *place) remove(ctx context.Context, schema, index, group string) error {
	if err := p.guard(ctx); err != nil {
		return err
	}
	if err := p.deleteIndices(ctx, index); err != nil {
		return fmt.Errorf("delete index %s: %w", index, err)
	}
	if _, err := p.pool.Exec(ctx, `select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and application_name like $1`,
		"weft/"+group+"/%"); err != nil {
		return fmt.Errorf("end sessions of group %s: %w", group, err)
	}
	if _, err := p.pool.Exec(ctx, "drop schema if exists "+pgx.Identifier{schema}.Sanitize()+" cascade"); err != nil {
		return fmt.Errorf("drop schema %s: %w", schema, err)
	}
	return nil
}

// indices lists those whose name begins with prefix, by their full names.
func (p *place) indices(ctx context.Context, prefix string) (names []string, err error) {
	var found map[string]json.RawMessage
	err = p.es.Do(ctx, http.MethodGet, "/"+prefix+"*/_settings?expand_wildcards=all&filter_path=*.settings.index.uuid", nil, &found)
	for name := range found {
		names = append(names, name)
	}
	return names, err
}

func (p *place) deleteIndices(ctx context.Context, prefix string) error {
	names, err := p.indices(ctx, prefix)
	if err != nil {
		return err
	}
	var errs []error
	for _, name := range names {
		errs = append(errs, p.es.Do(ctx, http.MethodDelete, "/"+url.PathEscape(name)+"?ignore_unavailable=true", nil, nil))
	}
	return errors.Join(errs...)
}

// clean removes what runs of a scenario have left on the place's servers because they
// were killed, and leaves alone what belongs to a run that lives.
func (p *place) clean(ctx context.Context, scenario string, out io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, tidyBound)
	defer cancel()
	like := strings.NewReplacer("_", `\_`).Replace(schemaPrefix+scenario+"_") + "%"
	rows, err := p.pool.Query(ctx, `select nspname from pg_namespace where nspname like $1 order by 1`, like)
	if err != nil {
		return fmt.Errorf("look for schemas: %w", err)
	}
	schemas, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return fmt.Errorf("look for schemas: %w", err)
	}
	for _, schema := range schemas {
		suffix := strings.TrimPrefix(schema, schemaPrefix+scenario+"_")
		if len(suffix) != suffixLength {
			continue // of a scenario with a longer name
		}
		removed, err := p.cleanOne(ctx, scenario, schema, suffix)
		if err != nil {
			return err
		}
		if removed {
			fmt.Fprintf(out, "%s: removed schema %s, its index and its sessions\n", scenario, schema)
		} else {
			fmt.Fprintf(out, "%s: schema %s belongs to a run that is under way\n", scenario, schema)
		}
	}
	return nil
}

// cleanOne holds the lock of a run while it removes what the run has left.
func (p *place) cleanOne(ctx context.Context, scenario, schema, suffix string) (removed bool, err error) {
	session, err := pgx.Connect(ctx, p.base)
	if err != nil {
		return false, fmt.Errorf("connect: %w", err)
	}
	defer func() { _ = session.Close(ctx) }()
	var free bool
	if err := session.QueryRow(ctx, occupied, schema).Scan(&free); err != nil || !free {
		return false, err
	}
	return true, p.remove(ctx, schema, indexPrefix+scenario+"-"+suffix, groupPrefix+suffix)
}
