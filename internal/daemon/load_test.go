package daemon_test

import (
	"context"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/internal/testenv/proxy"
	"github.com/samuelhu324-dev/weft/outbox"
)

// producer writes changes until it is stopped.
type producer struct {
	t       testing.TB
	wg      sync.WaitGroup
	end     context.CancelFunc
	written atomic.Int64
	failed  atomic.Pointer[error]
}

const writers = 4

// produce writes about perSecond changes of keys, every seventh a delete. Each key
// has one writer, as the lock of its row would see to in an application.
func (r *rig) produce(perSecond int, keys []outbox.Key) *producer {
	r.t.Helper()
	return r.produceFrom(1, perSecond, keys)
}

// produceFrom begins with a version.
func (r *rig) produceFrom(version int64, perSecond int, keys []outbox.Key) *producer {
	r.t.Helper()
	return r.produceWith(func(n int) int64 { return int64(n) + version }, perSecond, keys)
}

// produceNow gives events the microsecond as their version, as Wordloom does.
func (r *rig) produceNow(perSecond int, keys []outbox.Key) *producer {
	r.t.Helper()
	return r.produceWith(func(int) int64 { return time.Now().UnixMicro() }, perSecond, keys)
}

func (r *rig) produceWith(version func(n int) int64, perSecond int, keys []outbox.Key) *producer {
	r.t.Helper()
	ctx, end := context.WithCancel(context.Background())
	p := &producer{t: r.t, end: end}
	writers := min(writers, perSecond)
	for w := range writers {
		p.wg.Go(func() {
			for i := range testenv.Every(ctx, time.Duration(writers)*time.Second/time.Duration(perSecond)) {
				n := w + i*writers
				c := change{key: keys[n%len(keys)], version: version(n), op: outbox.Upsert, text: "version " + strconv.Itoa(n+1)}
				if n%7 == 6 {
					c.op = outbox.Delete
				}
				// Begun is finished, so that the end of the test leaves nothing behind.
				if err := r.tryWrite(context.WithoutCancel(ctx), c); err != nil {
					p.failed.Store(&err)
					return
				}
				p.written.Add(1)
			}
		})
	}
	r.t.Cleanup(func() { end(); p.wg.Wait() })
	return p
}

// stop returns how many changes were committed.
func (p *producer) stop() int {
	p.t.Helper()
	p.end()
	p.wg.Wait()
	if err := p.failed.Load(); err != nil {
		p.t.Fatalf("the producer failed: %v", *err)
	}
	return int(p.written.Load())
}

// newKeys returns n keys, in a number that gives each of them one writer.
func newKeys(n int) []outbox.Key {
	keys := make([]outbox.Key, (n+writers-1)/writers*writers)
	for i := range keys {
		keys[i] = newKey()
	}
	return keys
}

// Two live instances under a live writer, with the leadership forced back and forth:
// no document ever goes back, deleted ones stay deleted, and the order of every entity
// is kept.
func TestLeadershipForcedBackAndForth(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.record()
	rec := proxy.NewRecorder()
	a, b := r.start("a", "ELASTIC_URL="+r.tap("a", rec)), r.start("b", "ELASTIC_URL="+r.tap("b", rec))
	a.awaitReady(200)
	b.awaitReady(200)
	testenv.Eventually(t, func() bool { return r.leader() != "" }, "a leader")

	p := r.produce(200, newKeys(8))
	leaders, began := map[string]bool{}, time.Now()
	testenv.Eventually(t, func() bool {
		<-time.After(1200 * time.Millisecond)
		leaders[r.leader()] = true
		r.dethrone()
		return time.Since(began) > 10*time.Second && leaders["a"] && leaders["b"]
	}, "both to have led")
	n := p.stop()
	r.await(map[string]int{"done": n})
	r.judge(rec.Applied()...)
	t.Logf("%d changes, %d documents written, %d terms", n, len(rec.Applied()), r.number("select count(*) from weft_term"))
}

// tap puts a recording proxy before Elasticsearch and returns its URL.
func (r *rig) tap(instance string, rec *proxy.Recorder) string {
	r.t.Helper()
	tap, err := proxy.NewTap(instance, r.elastic, rec)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = tap.Close() })
	return tap.URL()
}

// leader returns the instance that holds the lock, or nothing.
func (r *rig) leader() (name string) {
	r.t.Helper()
	err := r.pool.QueryRow(context.Background(),
		"select coalesce(max(instance), '') from weft_leader where group_name = $1 and released_at is null", r.group).Scan(&name)
	if err != nil {
		r.t.Fatal(err)
	}
	return name
}
