package chaos

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/samuelhu324-dev/weft/internal/lab/fleet"
	"github.com/samuelhu324-dev/weft/internal/testenv/proxy"
)

// member is one name in the group: the process that bears it at the moment, and its
// own ways to both servers.
type member struct {
	name     string
	instance *fleet.Instance
	asked    bool // the end of instance was asked for
	other    bool // instance is of the other build

	*proxy.Proxies
}

func newMember(name string, p *place, rec *proxy.Recorder) (*member, error) {
	ways, err := proxy.NewProxies(name, p.databaseURL, p.elasticURL, rec)
	return &member{name: name, Proxies: ways}, err
}

func (m *member) env() []string {
	return []string{"DATABASE_URL=" + m.DatabaseURL, "ELASTIC_URL=" + m.ElasticURL}
}

// start is that of a process.
type start struct {
	name  string
	at    time.Time
	other bool // of the other build
}

// start gives the name a new process; binary is the fleet's own when empty, or in turns that
// of the other build.
func (r *run) start(ctx context.Context, m *member, binary string) (err error) {
	m.asked = false
	if binary == "" && r.otherBinary != "" {
		if m.other = !m.other; m.other {
			binary = r.otherBinary
		}
	}
	r.starts = append(r.starts, start{m.name, time.Now(), m.other})
	m.instance, err = r.fleet.StartWith(ctx, fleet.Options{Name: m.name, Env: m.env(), Binary: binary})
	return err
}

// supervise starts again what has ended, as a supervisor would. An end that nobody
// asked for is a finding.
func (r *run) supervise(ctx context.Context) error {
	for _, m := range r.members {
		if !m.instance.HasEnded() {
			continue
		}
		if !m.asked {
			r.surprises = append(r.surprises, m.instance.Ending().Error())
			r.console.Line("  instance %s ended by itself", m.name)
		}
		if err := r.start(ctx, m, ""); err != nil {
			return err
		}
	}
	return nil
}

// leadership is the row of weft_leader.
type leadership struct {
	epoch    int64
	instance string
	released bool
	beat     time.Duration // since the last heartbeat
	term     time.Duration // since the lock was won
}

func (r *run) leader(ctx context.Context) (l leadership, err error) {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	var beat, term float64
	err = r.place.pool.QueryRow(ctx, `
select epoch, instance, released_at is not null,
       extract(epoch from clock_timestamp() - renewed_at)::float8, extract(epoch from clock_timestamp() - acquired_at)::float8
from weft_leader where group_name = $1`, group).Scan(&l.epoch, &l.instance, &l.released, &beat, &term)
	l.beat, l.term = time.Duration(beat*float64(time.Second)), time.Duration(term*float64(time.Second))
	if err != nil {
		return l, fmt.Errorf("read leader: %w", err)
	}
	return l, nil
}

func (r *run) member(name string) *member {
	for _, m := range r.members {
		if m.name == name {
			return m
		}
	}
	return nil
}

// other returns a member that is not m.
func (r *run) other(m *member) *member {
	for _, o := range r.members {
		if o != m {
			return o
		}
	}
	return nil
}

const readyTimeout = 3 * time.Second

// readyNow asks for the readiness of an instance once.
func readyNow(ctx context.Context, i *fleet.Instance) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, i.URL("/health/ready"), nil)
	if err != nil {
		return err
	}
	req.Close = true
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		body, _ := io.ReadAll(io.LimitReader(res.Body, 600))
		return fmt.Errorf("%s: %s", res.Status, body)
	}
	return nil
}
