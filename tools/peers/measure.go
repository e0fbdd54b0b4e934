package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"syscall"
	"time"
)

const (
	writePause      = 50 * time.Millisecond
	restBeforeFault = 4 * time.Second
	rowsBefore      = 200 // of a takeover
	backlogBound    = 20 * time.Minute
	readyBound      = 2 * time.Minute
	takeoverBound   = 2 * time.Minute
	drainBound      = time.Minute
	// affected is how long after a fault the rows are written whose documents are waited for.
	affected     = time.Second
	searchPeriod = 100 * time.Millisecond
	firstOfWrite = 1_000_000
)

// fault is what the active instance suffers.
type fault struct {
	name   string
	signal syscall.Signal
}

// backlog are the figures of one.
type backlog struct {
	Rows       int     `json:"rows"`
	Searchable float64 `json:"searchable_seconds"`
	Settled    float64 `json:"settled_seconds"`
	Wrong      wrong   `json:"wrong"`
}

// takeover are the seconds from the fault to the first document of a row written after it, and
// to the documents of all rows of the first second after it.
type takeover struct {
	First float64 `json:"first_seconds"`
	All   float64 `json:"all_seconds,omitempty"`
	Wrong wrong   `json:"wrong"`
}

func measureBacklog(ctx context.Context, s *site, p peer, rows int) (b backlog, err error) {
	about := p.about()
	if err := s.elastic.remove(ctx, about.prefix); err != nil {
		return b, err
	}
	db, err := s.postgres.create(ctx, about.prefix+"-backlog")
	if err != nil {
		return b, err
	}
	defer db.Close()
	if err := p.fill(ctx, db, rows); err != nil {
		return b, fmt.Errorf("fill: %w", err)
	}
	if _, err := db.Exec(ctx, "checkpoint"); err != nil {
		return b, err
	}
	began := time.Now()
	instance, err := p.start(ctx, db, "a")
	if err != nil {
		return b, err
	}
	defer func() { err = errors.Join(err, instance.stop(syscall.SIGTERM)) }()
	b.Rows = rows
	searched, settled := false, false
	for !searched || !settled {
		switch {
		case instance.hasEnded():
			return b, fmt.Errorf("it ended by itself: %s", instance.tail())
		case time.Since(began) > backlogBound:
			return b, fmt.Errorf("not done within %v: %s", backlogBound, instance.tail())
		}
		if n, err := s.elastic.searchable(ctx, about.index); err != nil {
			return b, err
		} else if n >= rows && !searched {
			searched, b.Searchable = true, time.Since(began).Seconds()
		}
		if ok, err := p.settled(ctx, db); err != nil {
			return b, err
		} else if ok && !settled {
			settled, b.Settled = true, time.Since(began).Seconds()
		}
		if err := pause(ctx, searchPeriod); err != nil {
			return b, err
		}
	}
	b.Wrong, err = s.compare(ctx, db, about.index)
	return b, err
}

func (s *site) compare(ctx context.Context, db *database, index string) (w wrong, err error) {
	rows, err := db.rows(ctx)
	if err != nil {
		return w, fmt.Errorf("read rows: %w", err)
	}
	docs, err := s.elastic.documents(ctx, index)
	if err != nil {
		return w, err
	}
	return compare(rows, docs), nil
}

// ledger holds when each row was committed. It is safe for concurrent use.
type ledger struct {
	mu   sync.Mutex
	ids  []int64
	when []time.Time
}

func (l *ledger) add(id int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ids, l.when = append(l.ids, id), append(l.when, time.Now())
}

// after returns the rows of the time after a fault, without the first: its commit may have been
// before the fault, and its entry after it.
func (l *ledger) after(at time.Time, within time.Duration) []int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	first, _ := slices.BinarySearchFunc(l.when, at, time.Time.Compare)
	end, _ := slices.BinarySearchFunc(l.when, at.Add(within), time.Time.Compare)
	first = min(first+1, len(l.ids))
	return slices.Clone(l.ids[first:max(first, end)])
}

// scene is a peer at work under a trickle of writes.
type scene struct {
	*site
	peer
	db        *database
	instances map[string]*program
	ledger    ledger
	stop      context.CancelFunc
	wrote     chan error
}

// measureTakeover strikes the active instance while rows are written.
func measureTakeover(ctx context.Context, s *site, p peer, f fault, turn int) (t takeover, err error) {
	about := p.about()
	if err := s.elastic.remove(ctx, about.prefix); err != nil {
		return t, err
	}
	db, err := s.postgres.create(ctx, fmt.Sprintf("%s-%d-%d", about.prefix, f.signal, turn))
	if err != nil {
		return t, err
	}
	defer db.Close()
	c := &scene{site: s, peer: p, db: db, instances: map[string]*program{}, wrote: make(chan error, 1)}
	defer func() {
		for _, i := range c.instances {
			err = errors.Join(err, i.stop(syscall.SIGTERM))
		}
	}()
	if err := c.begin(ctx); err != nil {
		return t, err
	}
	t, victim, err := c.strike(ctx, f)
	c.stop()
	if err = errors.Join(err, <-c.wrote); err != nil {
		return t, err
	}
	// The frozen one goes on: what it does now may not spoil a document.
	if _, err := victim.signal(syscall.SIGCONT); err != nil && !errors.Is(err, syscall.ESRCH) {
		return t, err
	}
	var rows int
	if err := db.QueryRow(ctx, "select count(*) from item").Scan(&rows); err != nil {
		return t, err
	}
	drained := await(ctx, drainBound, "documents of all rows", func() (bool, error) {
		n, err := s.elastic.searchable(ctx, about.index)
		return n >= rows, err
	})
	if err := pause(ctx, restBeforeFault); err != nil {
		return t, err
	}
	t.Wrong, err = s.compare(ctx, db, about.index)
	if drained != nil && t.Wrong.total() == 0 {
		return t, drained
	}
	return t, err
}

// begin starts the instances and the writer, and returns when all are at work.
func (c *scene) begin(ctx context.Context) (err error) {
	if err := c.fill(ctx, c.db, rowsBefore); err != nil {
		return fmt.Errorf("fill: %w", err)
	}
	names := []string{"a", "b"}
	if c.about().standby == "" {
		names = names[:1]
	}
	for _, name := range names {
		if c.instances[name], err = c.start(ctx, c.db, name); err != nil {
			return err
		}
	}
	writing, stop := context.WithCancel(ctx)
	c.stop = stop
	go func() {
		err := c.write(writing, c.db, firstOfWrite, c.ledger.add)
		if writing.Err() != nil {
			err = nil // it was told to end
		}
		c.wrote <- err
	}()
	err = await(ctx, readyBound, "instances at work", func() (bool, error) {
		for _, i := range c.instances {
			if i.hasEnded() {
				return false, fmt.Errorf("%s ended by itself: %s", i.name, i.tail())
			}
		}
		n, err := c.elastic.searchable(ctx, c.about().index)
		if err != nil || n <= rowsBefore {
			return false, err
		}
		return c.ready(ctx, c.db, len(names))
	})
	if err == nil {
		err = pause(ctx, restBeforeFault)
	}
	if err != nil {
		stop()
		err = errors.Join(err, <-c.wrote)
	}
	return err
}

// strike injects a fault and waits for the documents of the rows of the second after it.
func (c *scene) strike(ctx context.Context, f fault) (t takeover, victim *program, err error) {
	name, err := c.active(ctx, c.db)
	if err != nil {
		return t, nil, err
	}
	victim = c.instances[name]
	if victim == nil {
		return t, nil, fmt.Errorf("%q is active, and nobody started it", name)
	}
	at, err := victim.signal(f.signal)
	if err != nil {
		return t, nil, err
	}
	if c.about().standby == "" {
		<-victim.ended
		if c.instances["again"], err = c.start(ctx, c.db, "again"); err != nil {
			return t, victim, err
		}
	}
	err = await(ctx, takeoverBound, "document of a row after the fault", func() (bool, error) {
		ids := c.ledger.after(at, affected)
		if len(ids) == 0 {
			return false, nil
		}
		found, err := c.elastic.written(ctx, c.about().index, ids)
		if err != nil {
			return false, err
		}
		if len(found) > 0 && t.First == 0 {
			t.First = time.Since(at).Seconds()
		}
		if len(found) < len(ids) || time.Since(at) < affected {
			return false, nil
		}
		t.All = time.Since(at).Seconds()
		return true, nil
	})
	return t, victim, err
}
