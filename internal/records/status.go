package records

import (
	"time"

	"github.com/samuelhu324-dev/weft/leader"
)

// Status is the JSON form of weft status. Names and units stay; fields may be added.
type Status struct {
	Group   string `json:"group"`
	LockKey int64  `json:"lock_key"`
	// Leader is the running term, null when nobody leads.
	Leader      *Leader      `json:"leader"`
	LastTerm    *Term        `json:"last_term"` // null when the group never had a leader
	Lock        Lock         `json:"lock"`
	Instances   []Instance   `json:"instances"`
	Projections []Projection `json:"projections"`
}

// Leader is the running term.
type Leader struct {
	Instance          string    `json:"instance"`
	Epoch             int64     `json:"epoch"`
	Since             time.Time `json:"since"`
	HeartbeatAgeSecs  float64   `json:"heartbeat_age_seconds"`
	ApplicationOfLock string    `json:"application_name"`

	Resign *Resign `json:"resign"` // it was asked to hand over; null when it was not

	// Trouble is what the leader says at its health endpoint; missing where nobody has asked it, or it did not answer.
	Trouble []Trouble `json:"trouble,omitzero"`
}

// Trouble is what holds up the leader, or what it warns of.
type Trouble struct {
	Of     string    `json:"of"`     // a server that it needs, or a projection
	State  string    `json:"state"`  // unusable; outage, paused by the breaker, moved: its index is another one, or rival: a leader of another database writes into it, too
	Detail string    `json:"detail"` // its reason alone, where another host asks
	Since  time.Time `json:"since"`
}

// Resign is a request to hand over.
type Resign struct {
	By      string    `json:"by"`
	Why     string    `json:"why"`
	AskedAt time.Time `json:"asked_at"`
}

// Term is the newest term, running or not.
type Term struct {
	Instance   string     `json:"instance"`
	Epoch      int64      `json:"epoch"`
	AcquiredAt time.Time  `json:"acquired_at"`
	RenewedAt  time.Time  `json:"renewed_at"`
	ReleasedAt *time.Time `json:"released_at"`
}

// Lock is the advisory lock of the group.
type Lock struct {
	Held        bool   `json:"held"`
	PID         int32  `json:"pid"`
	Application string `json:"application_name"`
	User        string `json:"user"`
	OfTerm      bool   `json:"of_term"`             // held by the session that the epoch was given to
	Elsewhere   bool   `json:"elsewhere,omitempty"` // held by an instance that works on the tables of another schema
}

// Instance is a process of the group.
type Instance struct {
	Name       string    `json:"name"`
	Role       string    `json:"role"`
	Host       string    `json:"host"`
	PID        int       `json:"pid"`
	Version    string    `json:"version"`
	HTTPAddr   string    `json:"http_addr"`
	DeskURL    string    `json:"desk_url"` // of its page
	StartedAt  time.Time `json:"started_at"`
	SeenAt     time.Time `json:"seen_at"`
	SeenAgo    float64   `json:"seen_seconds_ago"`
	UptimeSecs float64   `json:"uptime_seconds"`
	// Twin is another process that runs under the same name; nil without one.
	Twin *leader.Process `json:"twin,omitempty"`
}

// Projection is how far a projection is.
type Projection struct {
	Projection   string     `json:"projection"`
	Table        string     `json:"table"`
	Pending      int64      `json:"pending"`    // ready, and not in flight
	Retrying     int64      `json:"retrying"`   // waiting for their retry time, or put off
	Processing   int64      `json:"processing"` // in flight, or claimed by another worker
	Failed       int64      `json:"failed"`     // without those that were discarded
	Discarded    int64      `json:"discarded"`  // in failed, and discarded
	Stuck        int64      `json:"stuck"`
	DoneEstimate int64      `json:"done_estimate"`
	Lag          int64      `json:"lag_events"`
	OldestSecs   float64    `json:"oldest_age_seconds"`
	NextRetryAt  *time.Time `json:"next_retry_at"`
	LastSettleAt *time.Time `json:"last_settle_at"`

	InFlight        int64   `json:"in_flight"` // leased by the leader
	Batches         int     `json:"batches"`
	OldestBatchSecs float64 `json:"oldest_batch_age_seconds"`
	PutOff          int64   `json:"put_off"`       // of retrying: behind an earlier event of their entity
	Foreign         int64   `json:"other_workers"` // of processing: claimed by another worker or an older build

	Pause       *Pause       `json:"pause"`              // null unless somebody has paused the projection
	Throttle    *Throttle    `json:"throttle"`           // null unless somebody has throttled it
	Quarantine  []Quarantine `json:"quarantine"`         // entities that somebody lets wait, the oldest first
	Quarantined int64        `json:"quarantined_events"` // their open events; at most 10,000 of each are counted

	// VersionAhead is the alarm of the last day that documents are newer than their source
	// rows; null when there was none.
	VersionAhead *Ahead `json:"version_ahead"`

	Nameless *Nameless `json:"nameless"` // events that nothing can carry; null without any

	Rebuild *Rebuild `json:"rebuild"` // that goes on, or whose old index is kept; null without one

	Now    time.Time `json:"-"` // database clock
	Capped bool      `json:"-"` // one of the counts has met [Scope.Most]: there are at least so many
	Most   int       `json:"-"` // [Scope.Most]
}

// Full reports whether a count of p has met [Scope.Most]: there are at least so many.
func (p Projection) Full(n int64) bool { return p.Most > 0 && n >= int64(p.Most) }

// LagFull reports whether one of the counts that Lag adds up has met [Scope.Most].
func (p Projection) LagFull() bool {
	return p.Full(p.Pending) || p.Full(p.Retrying) || p.Full(p.Processing)
}

// Nameless are pending events whose rows have no entity or no version: nothing can carry them.
type Nameless struct {
	Events int      `json:"events"` // at most 1,000 are counted
	IDs    []string `json:"ids"`    // of the first ten
}

// Ahead is the alarm about documents that are newer than their source rows.
type Ahead struct {
	Writes   int       `json:"refused_writes"`
	FirstAt  time.Time `json:"first_at"`
	LastAt   time.Time `json:"last_at"`
	Entities []string  `json:"entities"` // the first few of the newest entry
}
