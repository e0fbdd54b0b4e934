package migrations

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

type index struct {
	name  string
	table string
	on    string // key columns and predicate
}

// outboxIndexes are partial, so that a claim reads heads of indexes that hold live
// work only, whatever number of done rows the table keeps.
func outboxIndexes(tables []table) []index {
	var all []index
	for _, t := range tables {
		prefix := "weft_" + strings.TrimSuffix(t.name, "_events")
		all = append(all,
			index{prefix + "_ready", t.name, "(event_version) where status = 'pending' and next_retry_at is null"},
			index{prefix + "_due", t.name, "(next_retry_at, event_version) where status = 'pending' and next_retry_at is not null"},
			index{prefix + "_processing", t.name, "(lease_until) where status = 'processing'"},
			index{prefix + "_failed", t.name, "(updated_at) where status = 'failed'"},
		)
	}
	return all
}

// upIndexes leaves out what only builds before leases read: none of them has worked on a database without
// indexes.
func (m *migrator) upIndexes(ctx context.Context) error {
	return m.ensureIndexes(ctx, slices.DeleteFunc(outboxIndexes(m.outboxes), forOlderBuilds), versionIndexes)
}

func (m *migrator) downIndexes(ctx context.Context) error {
	return m.dropIndexes(ctx, outboxIndexes(m.outboxes), versionIndexes)
}

// ensureIndexes builds those of a version that are missing or invalid.
func (m *migrator) ensureIndexes(ctx context.Context, all []index, version int64) error {
	for i, ix := range all {
		if err := m.ensureIndex(ctx, ix, version, i+1, len(all)); err != nil {
			return fmt.Errorf("index %s: %w", ix.name, err)
		}
	}
	return nil
}

// dropIndexes drops those of a version that are there.
func (m *migrator) dropIndexes(ctx context.Context, all []index, version int64) error {
	for i, ix := range all {
		m.report(version, i+1, len(all), "dropping index %s", ix.name)
		if err := m.concurrently(ctx, ix, "drop index concurrently if exists "+m.qualify(ix.name)); err != nil {
			return fmt.Errorf("drop index %s: %w", ix.name, err)
		}
	}
	return nil
}

// Deadlocks of a concurrent build with the application's explicit locks are rare;
// a second build usually goes through.
const buildAttempts = 3

// ensureIndex leaves a valid index, whatever it finds.
func (m *migrator) ensureIndex(ctx context.Context, ix index, version int64, n, of int) error {
	for attempt := 1; ; attempt++ {
		st, err := m.indexState(ctx, ix)
		if err != nil {
			return err
		}
		if st.exists && st.builder != 0 {
			// Left by a migrator that died: its server process goes on for a while, and
			// may even finish.
			if err := m.awaitBuilder(ctx, ix, version, n, of); err != nil {
				return err
			}
			if st, err = m.indexState(ctx, ix); err != nil {
				return err
			}
		}
		switch {
		case st.exists && st.table != ix.table:
			return refuse("the name is taken by a relation of table %q: rename that one", st.table)
		case st.exists && st.valid:
			return nil
		case st.exists:
			m.report(version, n, of, "dropping unfinished index %s", ix.name)
			if err := m.concurrently(ctx, ix, "drop index concurrently if exists "+m.qualify(ix.name)); err != nil {
				return fmt.Errorf("drop unfinished: %w", err)
			}
		}
		m.report(version, n, of, "building index %s", ix.name)
		err = m.build(ctx, ix)
		if err == nil {
			return nil
		}
		if pgCode(err) != codeDeadlock || attempt == buildAttempts {
			return err
		}
	}
}

func (m *migrator) build(ctx context.Context, ix index) error {
	var size int64
	if err := m.db.QueryRowContext(ctx, "select pg_relation_size($1::regclass)", m.qualify(ix.table)).Scan(&size); err != nil {
		return fmt.Errorf("size of %s: %w", ix.table, err)
	}
	on := ix.name + " on " + m.qualify(ix.table) + " " + ix.on
	if size == 0 {
		// A table without a page: the plain build takes no time and waits for no one
		// else's snapshot.
		return m.ddl(ctx, ix.table, "create index "+on)
	}
	return m.concurrently(ctx, ix, "create index concurrently "+on)
}

type indexState struct {
	exists  bool
	valid   bool
	table   string
	builder int // pid of a backend that is building it; 0 for none
}

func (m *migrator) indexState(ctx context.Context, ix index) (indexState, error) {
	var st indexState
	err := m.db.QueryRowContext(ctx, `select true, coalesce(i.indisvalid and i.indisready, false), coalesce(t.relname, c.relname),
			coalesce((select p.pid from pg_stat_progress_create_index p where p.datname = current_database() and p.index_relid = c.oid limit 1), 0)
		from pg_class c join pg_namespace n on n.oid = c.relnamespace
		left join pg_index i on i.indexrelid = c.oid left join pg_class t on t.oid = i.indrelid
		where n.nspname = $1 and c.relname = $2`, m.schema, ix.name).Scan(&st.exists, &st.valid, &st.table, &st.builder)
	if errors.Is(err, sql.ErrNoRows) {
		return indexState{}, nil
	}
	if err != nil {
		return st, fmt.Errorf("inspect: %w", err)
	}
	return st, nil
}

func (m *migrator) awaitBuilder(ctx context.Context, ix index, version int64, n, of int) error {
	start := time.Now()
	reported := false
	for {
		st, err := m.indexState(ctx, ix)
		if err != nil || st.builder == 0 {
			return err
		}
		holder, _ := readHolder(ctx, m.db, "a.pid = $1", st.builder)
		if waited := time.Since(start); waited > m.opt.wait {
			return &LockError{What: "an earlier build of index " + ix.name, Waited: waited, Holder: holder}
		}
		if !reported {
			reported = true
			m.report(version, n, of, "waiting for an earlier build of %s by %s", ix.name, holder)
		}
		if err := sleep(ctx, 200*time.Millisecond); err != nil {
			return err
		}
	}
}

// concurrently runs a statement that shuts out no writer but waits for the
// transactions that were open before it, and says for which one it waits.
func (m *migrator) concurrently(ctx context.Context, ix index, stmt string) error {
	if err := m.lock.check(ctx); err != nil {
		return err
	}
	conn, err := m.db.Conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	// Nobody queues behind this wait, so it may be long.
	if err := setLockTimeout(ctx, conn, m.opt.wait); err != nil {
		return err
	}
	var pid int
	if err := conn.QueryRowContext(ctx, "select pg_backend_pid()").Scan(&pid); err != nil {
		return err
	}
	start := time.Now()
	watching, stop := context.WithCancel(ctx)
	last := make(chan Holder, 1)
	go func() { last <- m.watch(watching, ix, pid) }()
	_, err = conn.ExecContext(ctx, stmt)
	stop()
	holder := <-last
	if pgCode(err) == codeLockTimeout {
		return &LockError{What: "the transactions that were open on " + ix.table + " or hold a snapshot", Waited: time.Since(start), Holder: holder}
	}
	return err
}

// watch reports each session that pid waits for, and returns the last one.
func (m *migrator) watch(ctx context.Context, ix index, pid int) Holder {
	var last Holder
	for sleep(ctx, 500*time.Millisecond) == nil {
		h, err := readHolder(ctx, m.db, `a.pid = any(pg_blocking_pids($1))`, pid)
		if err != nil {
			continue // nobody in the way, or no answer: the statement itself will tell
		}
		if h.PID != last.PID {
			m.report(0, 0, 0, "index %s waits for %s", ix.name, h)
		}
		last = h
	}
	return last
}
