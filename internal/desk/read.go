package desk

import (
	"cmp"
	"context"
	"sync"
	"time"

	"github.com/samuelhu324-dev/weft/internal/admin"
	"github.com/samuelhu324-dev/weft/internal/records"
	"github.com/samuelhu324-dev/weft/leader"
)

const (
	electionEvery = 900 * time.Millisecond // less than broadcastEvery, so that each broadcast has a new one
	tablesEvery   = 5 * time.Second
	// tablesShare bounds the cost: tables whose reading took t are read again no sooner than
	// tablesShare*t later.
	tablesShare = 100
	tablesMax   = 5 * time.Minute
	// tablesAgain is the longest pause after a reading of the tables that failed: what is
	// shown is old by then.
	tablesAgain = 30 * time.Second
	readTimeout = 10 * time.Second // of one reading

	termDays = 7 * 24 * time.Hour
	termMost = 200
	listMost = 10 // batches and waiting events of a projection
)

// Overview is the JSON form of the first page. Names and units stay; fields may be added.
type Overview struct {
	Instance    Instance         `json:"instance"` // that answers
	Status      records.Status   `json:"status"`
	Shards      []Shard          `json:"shards,omitempty"` // where there are several
	Terms       []Term           `json:"terms"`            // of the last seven days, the newest first
	Projections []ProjectionView `json:"projections"`
	ReadAt      time.Time        `json:"read_at"` // clock of this host
	Error       string           `json:"error"`   // why parts of it are older than that
}

// Instance is the process that answers.
type Instance struct {
	admin.Report
	Version string `json:"version"`
}

// Term is a term of the last days.
type Term struct {
	Epoch      int64      `json:"epoch"`
	Instance   string     `json:"instance"`
	AcquiredAt time.Time  `json:"acquired_at"`
	EndedAt    *time.Time `json:"ended_at"` // null while it runs, or when nobody has recorded it
	Reason     string     `json:"end_reason"`
}

// ProjectionView is what is shown of one projection beside its counts in Status.
type ProjectionView struct {
	Projection string           `json:"projection"`
	Activity   admin.Projection `json:"activity"`         // of this instance; idle on a standby
	AtLeast    bool             `json:"counts_at_least"`  // the counts in Status end at a limit
	Blocked    *float64         `json:"blocked_entities"` // null on an instance that does not lead
	records.Queue
	Charts []Chart `json:"charts"` // of this instance

	Counts records.Projection `json:"-"`
}

// reader reads the overview. All viewers share its readings.
type reader struct {
	o Options

	mu         sync.Mutex
	status     records.Status // without projections
	terms      []Term
	electionAt time.Time // of the newest one that was read
	triedAt    time.Time // the end of the newest try
	tables     []records.Projection
	queues     map[string]records.Queue
	due        time.Time // of the next reading of the tables
	// Why the newest reading of each failed; nil when it did not.
	noElection, noTables error
}

// overview returns the state; it reads what is too old.
func (r *reader) overview(ctx context.Context, samples *samples) Overview {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.refresh(ctx)
	now := time.Now()
	out := Overview{Instance: Instance{Report: r.o.Health.Report(), Version: r.o.Version}, Status: r.status, Terms: r.terms,
		Projections: []ProjectionView{}, ReadAt: r.electionAt.UTC()}
	if r.o.Shards != nil {
		out.Shards = r.o.Shards()
	}
	out.Status.Projections = append([]records.Projection{}, r.tables...)
	if err := cmp.Or(r.noElection, r.noTables); err != nil {
		out.Error = inert(r.o.Diagnose(err))
	}
	for _, t := range r.o.Scope.Tables {
		v := ProjectionView{Projection: t.Projection, Activity: out.Instance.Projections[t.Projection], Queue: r.queues[t.Projection]}
		for _, p := range r.tables {
			if p.Projection == t.Projection {
				v.Counts, v.AtLeast = p, p.Capped
			}
		}
		at, values, blocked := samples.history(t.Projection)
		if out.Instance.Role == admin.Leader {
			v.Blocked = &blocked
		}
		v.Charts = charts(at, values, now)
		out.Projections = append(out.Projections, v)
	}
	return out
}

// expire has the next viewer read everything anew: somebody has changed it.
func (r *reader) expire() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.triedAt, r.due = time.Time{}, time.Time{}
}

// refresh reads the election once a second, and the tables less often. A try that failed counts
// as well: viewers must not wait in a row for a server that does not answer.
func (r *reader) refresh(ctx context.Context) {
	// A viewer that leaves must not spoil the reading for the others.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), readTimeout)
	defer cancel()
	if time.Since(r.triedAt) >= electionEvery {
		r.noElection = r.readElection(ctx)
		r.triedAt = time.Now()
	}
	if start := time.Now(); r.noElection == nil && !start.Before(r.due) {
		r.noTables = r.readTables(ctx)
		most := tablesMax
		if r.noTables != nil {
			most = tablesAgain
		}
		r.due = time.Now().Add(min(max(tablesEvery, tablesShare*time.Since(start)), most))
	}
}

func (r *reader) readElection(ctx context.Context) error {
	db, group := r.o.DB, r.o.Scope.Group
	status, err := records.ReadElection(ctx, db, group)
	if err != nil {
		return err
	}
	past, err := leader.History(ctx, db, group, time.Now().Add(-termDays), termMost)
	if err != nil {
		return err
	}
	r.status, r.terms = status, make([]Term, len(past))
	for i, t := range past {
		r.terms[i] = Term{Epoch: t.Epoch, Instance: t.Instance, AcquiredAt: t.AcquiredAt.UTC(), EndedAt: records.UTC(t.EndedAt), Reason: t.EndReason}
	}
	r.electionAt = time.Now()
	return nil
}

func (r *reader) readTables(ctx context.Context) error {
	st, err := records.ReadStatus(ctx, r.o.DB, r.o.Scope)
	if err != nil {
		return err
	}
	queues := map[string]records.Queue{}
	for _, t := range r.o.Scope.Tables {
		if queues[t.Projection], err = records.ReadQueue(ctx, r.o.DB, r.o.Scope, t, listMost); err != nil {
			return err
		}
	}
	r.tables, r.queues = st.Projections, queues
	return nil
}
