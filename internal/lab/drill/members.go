package drill

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/samuelhu324-dev/weft/internal/lab/await"
	"github.com/samuelhu324-dev/weft/internal/lab/evidence"
	"github.com/samuelhu324-dev/weft/internal/lab/fleet"
	"github.com/samuelhu324-dev/weft/internal/testenv/proxy"
)

const (
	scrapeBound  = 3 * time.Second
	scrapePeriod = 250 * time.Millisecond
	scrapeLimit  = 16 << 20
)

// member is a process and its own ways to both servers.
type member struct {
	*proxy.Proxies
	name     string
	instance *fleet.Instance
	asked    bool // its end was asked for

	last map[string]float64 // what its metrics said; of the watch
}

// start starts an instance under a name of its own, waits until it is ready and takes its
// first metrics.
func (r *run) start(ctx context.Context, name string, env ...string) (*member, error) {
	m, err := r.launch(ctx, name, env...)
	if err != nil {
		return nil, err
	}
	if err := m.instance.Ready(ctx); err != nil {
		return nil, err
	}
	r.scrape(ctx, m)
	r.step("instance %s is ready", name)
	return m, nil
}

// launch starts an instance and waits for nothing.
func (r *run) launch(ctx context.Context, name string, env ...string) (*member, error) {
	ways, err := proxy.NewProxies(name, r.databaseURL, r.elasticURL, r.recorder)
	if err != nil {
		return nil, err
	}
	m := &member{Proxies: ways, name: name, last: map[string]float64{}}
	own := append([]string{"ELASTIC_URL=" + m.ElasticURL}, env...)
	if r.scenario.linked {
		own = append(own, "DATABASE_URL="+m.DatabaseURL)
	}
	if m.instance, err = r.fleet.Start(ctx, name, own...); err != nil {
		return nil, errors.Join(err, m.Close())
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.members = append(r.members, m)
	r.recipe.Settings[name] = evidence.Settings(append(append([]string(nil), r.fleet.Env...), own...))
	return m, nil
}

// all returns the members there are so far.
func (r *run) all() []*member {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]*member(nil), r.members...)
}

// member returns the one of that name.
func (r *run) member(name string) *member {
	for _, m := range r.all() {
		if m.name == name {
			return m
		}
	}
	return nil
}

// scrape takes the metrics of an instance; one that does not answer has said what it has
// said.
func (r *run) scrape(ctx context.Context, m *member) {
	text, err := get(ctx, m.instance.URL("/metrics"), scrapeBound)
	if err != nil {
		return
	}
	families, err := evidence.Parse(text)
	if err != nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.before[m.name] == nil {
		r.before[m.name] = families
	}
	r.after[m.name] = families
	if changed := evidence.Changed(m.last, families.Samples()); len(changed) > 0 {
		r.changes = append(r.changes, evidence.Change{At: time.Now().UTC(), Instance: m.name, Values: changed})
	}
}

// now returns the sum of a metric of all instances as of the last scrape.
func (r *run) now(name string, labels ...string) (sum float64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, families := range r.after {
		sum += families.Samples().Sum(name, labels...)
	}
	return sum
}

// watch takes the metrics of all instances all the time, and ends the run when one of them
// ends that nobody has asked to.
func (r *run) watch(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var wait sync.WaitGroup
	wait.Go(func() {
		for await.Sleep(ctx, scrapePeriod) == nil {
			for _, m := range r.all() {
				if m.instance.HasEnded() {
					r.mu.Lock()
					asked := m.asked
					r.mu.Unlock()
					if !asked {
						r.cancel(m.instance.Ending())
						return
					}
					continue
				}
				r.scrape(ctx, m)
			}
			r.console.Refresh(fmt.Sprintf("%6.1f s  lag %.0f  done %.0f  failed %.0f  retried %.0f", time.Since(r.recipe.Started).Seconds(),
				r.now("outbox_lag_events"), r.now("outbox_processed_total"), r.now("outbox_failed_total"), r.now("outbox_retry_scheduled_total")))
		}
	})
	return func() {
		cancel()
		wait.Wait()
	}
}

// expectEnd says that a member is about to be ended.
func (r *run) expectEnd(m *member) {
	r.mu.Lock()
	defer r.mu.Unlock()
	m.asked = true
}

func get(ctx context.Context, url string, bound time.Duration) ([]byte, error) {
	status, body, err := ask(ctx, url, bound)
	if err == nil && status != http.StatusOK {
		err = fmt.Errorf("%s: %d", url, status)
	}
	return body, err
}

func ask(ctx context.Context, url string, bound time.Duration) (int, []byte, error) {
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, nil, err
	}
	req.Close = true
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, scrapeLimit))
	return res.StatusCode, body, err
}

// leader is the row of weft_leader.
type leader struct {
	epoch    int64
	instance string
	released bool
}

func (r *run) leader(ctx context.Context) (l leader, err error) {
	err = r.pool.QueryRow(ctx, `select epoch, instance, released_at is not null from weft_leader where group_name = $1`, r.group).
		Scan(&l.epoch, &l.instance, &l.released)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		err = fmt.Errorf("read leader: %w", err)
	}
	return l, err
}

// leads waits until m does.
func (r *run) leads(ctx context.Context, m *member) error {
	return r.await(ctx, "term of "+m.name, func(ctx context.Context) error {
		l, err := r.leader(ctx)
		if err == nil && (l.instance != m.name || l.released) {
			err = fmt.Errorf("the leader is %q, epoch %d, released %v", l.instance, l.epoch, l.released)
		}
		return err
	})
}
