package move

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"golang.org/x/sync/errgroup"
)

const (
	// stalledAfter is how long nothing may come through before the copy is given up.
	stalledAfter = 2 * time.Minute
	reportEvery  = time.Second
	copyBuffer   = 256 << 10
	// A comparison reads each row once, at some microseconds; this is far more.
	compareFixed, compareRow = 2 * time.Minute, 100 * time.Microsecond
)

var errStalled = errors.New("nothing comes through")

// passed counts what is written.
type passed struct {
	to    io.Writer
	bytes *atomic.Int64
}

func (p passed) Write(b []byte) (int, error) {
	n, err := p.to.Write(b)
	p.bytes.Add(int64(n))
	return n, err
}

// copyTable copies the rows of one table, and returns how many there are.
func (m *mover) copyTable(ctx context.Context, t Table, bytes *atomic.Int64) (int64, error) {
	table := pgx.Identifier{m.Schema, t.Name}.Sanitize()
	read := fmt.Sprintf("copy %s (%s) to stdout (format binary)", table, t.columns)
	if t.parts {
		read = fmt.Sprintf("copy (select %s from %s) to stdout (format binary)", t.columns, table)
	}
	write := fmt.Sprintf("copy %s (%s) from stdin (format binary)", table, t.columns)
	var sent, received pgconn.CommandTag
	var first error // of the side that has failed; the other one fails by it
	var once sync.Once
	side := func(at Server, err error) error {
		if err != nil {
			once.Do(func() { first = fmt.Errorf("%s: %w", at.Address, err) })
		}
		return err
	}
	r, w := io.Pipe()
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() (err error) {
		buffer := bufio.NewWriterSize(passed{w, bytes}, copyBuffer)
		if sent, err = m.from.PgConn().CopyTo(ctx, buffer, read); err == nil {
			err = buffer.Flush()
		}
		_ = w.CloseWithError(side(m.plan.From, err))
		return err
	})
	g.Go(func() (err error) {
		received, err = m.to.PgConn().CopyFrom(ctx, r, write)
		_ = r.CloseWithError(side(m.plan.To, err))
		return err
	})
	if g.Wait() != nil {
		return 0, fmt.Errorf("copy %s: %w", t.Name, first)
	}
	if sent.RowsAffected() != received.RowsAffected() {
		return 0, fmt.Errorf("copy %s: %d rows were sent and %d taken", t.Name, sent.RowsAffected(), received.RowsAffected())
	}
	return sent.RowsAffected(), nil
}

// copyAll copies all tables, tells how far it is, and gives up when nothing comes through.
func (m *mover) copyAll(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var bytes, table atomic.Int64
	var about int64
	patience := cmp.Or(m.stalled, stalledAfter)
	for _, t := range m.tables {
		about += t.Bytes
	}
	told := make(chan struct{})
	go func() {
		defer close(told)
		tick := time.NewTicker(reportEvery)
		defer tick.Stop()
		last, since := int64(-1), time.Now()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			n := int(table.Load())
			if now := bytes.Load() + int64(n); now != last {
				last, since = now, time.Now()
			} else if time.Since(since) > patience {
				cancel(fmt.Errorf("%w for %s", errStalled, patience))
				return
			}
			m.tell(Progress{What: "copying " + m.tables[n].Name, Bytes: bytes.Load(), Of: about, Table: n + 1, Last: len(m.tables)})
		}
	}()
	var err error
	for n := range m.tables {
		table.Store(int64(n))
		if m.tables[n].Rows, err = m.copyTable(ctx, m.tables[n], &bytes); err != nil {
			if cause := context.Cause(ctx); errors.Is(cause, errStalled) {
				err = fmt.Errorf("copy %s: %w", m.tables[n].Name, cause)
			}
			break
		}
	}
	cancel(nil)
	<-told
	m.result.Bytes = bytes.Load()
	return err
}

// content is how many rows a table has, and the sum of their hashes, in which their order has no part.
type content struct {
	rows int64
	hash string
}

// readTime is how long it may take to read so many rows.
func readTime(rows int64) time.Duration { return compareFixed + time.Duration(rows)*compareRow }

func readContent(ctx context.Context, conn *pgx.Conn, schema string, t Table) (c content, err error) {
	ctx, cancel := context.WithTimeout(ctx, readTime(t.Rows))
	defer cancel()
	err = conn.QueryRow(ctx, fmt.Sprintf("select count(*), coalesce(sum(hashtextextended(row(%s)::text, 0)::numeric), 0)::text from %s",
		t.columns, pgx.Identifier{schema, t.Name}.Sanitize())).Scan(&c.rows, &c.hash)
	return c, err
}

// compare reads both sides of every table, and refuses a difference.
func (m *mover) compare(ctx context.Context) error {
	for _, t := range m.tables {
		var here, there content
		g, ctx := errgroup.WithContext(ctx)
		g.Go(func() (err error) { here, err = readContent(ctx, m.from, m.Schema, t); return err })
		g.Go(func() (err error) { there, err = readContent(ctx, m.to, m.Schema, t); return err })
		if err := g.Wait(); err != nil {
			return fmt.Errorf("compare %s: %w", t.Name, err)
		}
		if here != there || here.rows != t.Rows {
			return fmt.Errorf("%s has %d rows in %s and %d in %s, or others: does a trigger or a rule of one of them change what is written?",
				t.Name, here.rows, m.plan.From.Address, there.rows, m.plan.To.Address)
		}
	}
	return nil
}
