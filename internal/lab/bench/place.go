package bench

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/samuelhu324-dev/weft/internal/lab/rig"
	"github.com/samuelhu324-dev/weft/internal/testenv/collector"
	"github.com/samuelhu324-dev/weft/internal/testenv/stack"
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
	*rig.Place
	log       string               // of PostgreSQL
	collector *collector.Collector // of traces
}

// open starts the servers, and has PostgreSQL write down each statement, its transaction and how long it
// took.
func (b *bench) open() {
	servers := rig.Try(rig.Open(b.Ctx, stack.Options{Progress: b.opts.Progress, HeapMB: b.opts.HeapMB}, 1)).Must(b)
	p := &place{Place: servers, log: servers.Servers.Log(stack.Postgres)}
	b.place = p
	p.collector = rig.Try(collector.Start(b.Ctx)).Must(b)
	for _, sql := range []string{
		"alter system set log_line_prefix = '" + logPrefix + "'",
		"alter system set log_timezone = 'UTC'",
		"alter system set log_parameter_max_length = 0",
		"alter system set log_min_duration_statement = 0",
		"select pg_reload_conf()",
	} {
		rig.Try(p.Pool.Exec(b.Ctx, sql)).MustDo(b, "log statements")
	}
	b.Must(rig.Await(b.Ctx, reloadTimeout, 10*time.Millisecond, "reload of the configuration", func(ctx context.Context) error {
		return p.Holds(ctx, "select current_setting('log_line_prefix') = $1", logPrefix)
	}))
}

func (p *place) close(ctx context.Context) error {
	if p.collector != nil {
		p.collector.Close()
	}
	return p.Place.Close(ctx)
}

// quiet returns a URL whose sessions leave no trace in the log.
func quiet(databaseURL string) (string, error) {
	u, err := url.Parse(databaseURL)
	if err != nil {
		return "", errors.New("database: want a URL") // the error's text may hold a password
	}
	q := u.Query()
	q.Set("log_min_duration_statement", "-1")
	u.RawQuery = q.Encode()
	return u.String(), nil
}

// expect wants an index to hold so many documents.
func (b *bench) expect(name string, documents int) {
	var answer struct{ Count int }
	b.MustDo("refresh "+name, b.place.Elastic.Do(b.Ctx, http.MethodPost, "/"+name+"/_refresh", nil, nil))
	b.MustDo("count "+name, b.place.Elastic.Do(b.Ctx, http.MethodGet, "/"+name+"/_count", nil, &answer))
	b.Expect(answer.Count == documents, "index %s holds %d documents, want %d", name, answer.Count, documents)
}

// rest waits until neither server has anything to do; one that never stops has waited
// long enough after restTimeout.
func (b *bench) rest() {
	rig.Try(b.place.Pool.Exec(b.Ctx, "checkpoint")).MustDo(b, "checkpoint")
	for began := time.Now(); time.Since(began) < restTimeout; {
		before := b.serversCPU()
		b.Pause(restWindow)
		after := b.serversCPU()
		if after.postgres+after.elastic-before.postgres-before.elastic < restShare*restWindow.Seconds() {
			return
		}
	}
}

// shardSettings names the schemas of n shards after that of the site, and returns the settings
// that say so.
func (s *site) shardSettings(n int) []string {
	prefix := s.Schema + "_shard_"
	for i := range n {
		s.shards = append(s.shards, prefix+strconv.Itoa(i))
	}
	return []string{"WEFT_SHARDS=" + strconv.Itoa(n), "WEFT_SHARDS_PREFIX=" + prefix}
}

// dropShards removes the schemas of shards, which are not in that of the site.
func (s *site) dropShards() error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.Ctx), queryTimeout)
	defer cancel()
	return errors.Join(rig.Map(s.shards, func(schema string) error { return s.place.Remove(ctx, schema, "", "") })...)
}
