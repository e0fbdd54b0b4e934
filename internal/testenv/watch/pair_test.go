//go:build observability

package watch_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samuelhu324-dev/weft/internal/lab/rig"
	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/internal/testenv/watch"
	"github.com/samuelhu324-dev/weft/outbox"
)

const (
	job         = "weft-test"
	environment = "test"
	searchTable = "search_outbox_events"
)

// pair is two instances on a database and an index of the test's own.
type pair struct {
	pool      *pgxpool.Pool
	instances []*rig.Instance
}

func startPair(t *testing.T, env ...string) *pair {
	t.Helper()
	url := testenv.Database(t)
	p := &pair{pool: testenv.Pool(t, url)}
	if _, err := p.pool.Exec(t.Context(), "insert into environment_sentinel (id, env) values (1, $1)", environment); err != nil {
		t.Fatal(err)
	}
	f := &rig.Fleet{Binary: testenv.Program(t, "weft"), Dir: t.TempDir(), Env: append([]string{
		"DATABASE_URL=" + url, "ELASTIC_URL=" + testenv.ElasticURL(t), "ELASTIC_INDEX=" + testenv.Index(t),
		"WORDLOOM_ENV=" + environment, "WEFT_LOG_LEVEL=debug",
	}, env...)}
	t.Cleanup(func() {
		if err := f.Stop(); err != nil {
			t.Error(err)
		}
	})
	for _, name := range []string{"a", "b"} {
		i, err := f.Start(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		p.instances = append(p.instances, i)
	}
	for _, i := range p.instances {
		if err := i.Ready(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	return p
}

func (p *pair) targets() (all []watch.Target) {
	for _, i := range p.instances {
		all = append(all, watch.Target{Job: job, Address: strings.TrimPrefix(i.URL(""), "http://")})
	}
	return all
}

// write makes n entities and their events in one transaction.
func (p *pair) write(ctx context.Context, n int) error {
	return pgx.BeginFunc(ctx, p.pool, func(tx pgx.Tx) error {
		events := make([]outbox.NewEvent, n)
		for i := range events {
			version := time.Now().UnixMicro()
			events[i] = outbox.NewEvent{Key: outbox.Key{Type: "block", ID: outbox.UUID(uuid.New())}, Op: outbox.Upsert, Version: version}
			if _, err := tx.Exec(ctx, `insert into search_index (id, entity_type, entity_id, text, snippet, event_version)
				values (gen_random_uuid(), $1, $2, $3, '1', $4)`,
				events[i].Key.Type, &events[i].Key.ID, fmt.Sprint("text ", i), version); err != nil {
				return err
			}
		}
		return outbox.Enqueue(ctx, tx, searchTable, events...)
	})
}

// load writes until the test ends.
func (p *pair) load(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		var err error
		for range testenv.Every(ctx, 50*time.Millisecond) {
			if err = p.write(ctx, 5); err != nil {
				break
			}
		}
		if errors.Is(err, context.Canceled) {
			err = nil
		}
		ended <- err
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("load: %v", err)
		}
	})
}
