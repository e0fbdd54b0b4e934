package drill

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/samuelhu324-dev/weft/internal/lab/rig"
	"github.com/samuelhu324-dev/weft/internal/testenv/stack"
)

const (
	schemaPrefix = "weft_drill_"
	indexPrefix  = "weft-drill-"
	groupPrefix  = "drill-"

	tidyBound = time.Minute

	cornerConns = loadConns + 10
)

// site is the servers that drills run on, and the right to run there.
type site struct {
	*rig.Place
	want        string // environment that the caller expects; may be empty
	environment string
}

// openSite starts the servers that opts does not name, and makes sure that drills may run
// there.
func openSite(ctx context.Context, opts stack.Options, want string) (*site, error) {
	p, err := rig.Open(ctx, opts, 2)
	if err != nil {
		return nil, err
	}
	s := &site{Place: p, want: want}
	if err := s.guard(ctx); err != nil {
		return nil, errors.Join(err, p.Close(ctx))
	}
	return s, nil
}

// guard returns an error unless the database is of environment test or dev, and of the one
// that the caller expects.
func (s *site) guard(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeout(ctx, queryBound)
	defer cancel()
	s.environment, err = rig.CheckEnvironment(ctx, s.Pool, s.want)
	return err
}

// corner is the part of a site that belongs to one run: its schema, index and group.
type corner struct {
	*rig.Place
	site    *site
	session *pgx.Conn // holds the lock that says that the run lives
}

// occupied takes the lock that a run holds on its schema.
const occupied = `select pg_try_advisory_lock(hashtextextended('weftlab ' || $1, 0))`

// sentinelTable is the application's, for the guard of weft, which sees the schema only.
const sentinelTable = `
create table environment_sentinel (
  id integer primary key, project text not null default 'wordloom', env text not null, created_at timestamptz not null default now()
)`

// newCorner makes the schema. weft makes the index.
func (s *site) newCorner(ctx context.Context, scenario string) (c *corner, err error) {
	c = &corner{site: s}
	suffix := rig.Suffix()
	schema := schemaPrefix + scenario + "_" + suffix
	defer func() {
		if err != nil {
			err = errors.Join(err, c.close(ctx))
		}
	}()
	limited, cancel := context.WithTimeout(ctx, queryBound)
	defer cancel()
	var held bool
	if c.session, held, err = s.occupy(limited, schema); err != nil || !held {
		return c, fmt.Errorf("lock the run's schema: held %v: %w", held, err)
	}
	if err := s.guard(ctx); err != nil {
		return c, err
	}
	if c.Place, err = s.Corner(ctx, schema, indexPrefix+scenario+"-"+suffix, groupPrefix+suffix, cornerConns); err != nil {
		return c, err
	}
	if _, err = c.Pool.Exec(limited, sentinelTable); err == nil {
		_, err = c.Pool.Exec(limited, `insert into environment_sentinel (id, env) values (1, $1)`, s.environment)
	}
	return c, rig.Wrap("sentinel of the schema", err)
}

// occupy tries to take the lock of a run in a new session, which the caller closes.
func (s *site) occupy(ctx context.Context, schema string) (session *pgx.Conn, held bool, err error) {
	if session, err = pgx.Connect(ctx, s.DatabaseURL); err != nil {
		return nil, false, fmt.Errorf("connect: %w", err)
	}
	err = session.QueryRow(ctx, occupied, schema).Scan(&held)
	return session, held, err
}

// close removes what the run has made, if drills may still run there.
func (c *corner) close(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), tidyBound)
	defer cancel()
	if c.Place != nil {
		if err = c.site.guard(ctx); err == nil {
			err = c.Place.Close(ctx)
		} else {
			c.Pool.Close()
		}
	}
	if c.session != nil {
		_ = c.session.Close(ctx)
	}
	return err
}

// clean removes what runs of a scenario have left on the site's servers because they were
// killed, and leaves alone what belongs to a run that lives.
func (s *site) clean(ctx context.Context, scenario string, out io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, tidyBound)
	defer cancel()
	prefix := schemaPrefix + scenario + "_"
	var schemas []string
	err := s.Row(ctx, "look for schemas", `select coalesce(array_agg(nspname::text order by nspname), '{}') from pg_namespace where nspname like $1`,
		strings.ReplaceAll(prefix, "_", `\_`)+"%").Scan(&schemas)
	if err != nil {
		return err
	}
	for _, schema := range schemas {
		suffix := strings.TrimPrefix(schema, prefix)
		if len(suffix) != len(rig.Suffix()) {
			continue // of a scenario with a longer name
		}
		removed, err := s.cleanOne(ctx, scenario, schema, suffix)
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
func (s *site) cleanOne(ctx context.Context, scenario, schema, suffix string) (removed bool, err error) {
	session, free, err := s.occupy(ctx, schema)
	if session != nil {
		defer func() { _ = session.Close(ctx) }()
	}
	if err != nil || !free {
		return false, err
	}
	if err := s.guard(ctx); err != nil {
		return false, err
	}
	return true, s.Remove(ctx, schema, indexPrefix+scenario+"-"+suffix, groupPrefix+suffix)
}
