package records

import (
	"fmt"
	"strings"
	"time"

	"github.com/samuelhu324-dev/weft/outbox"
)

// Rebuild is the JSON form of a rebuild. Names and units stay; fields may be added.
type Rebuild struct {
	Projection string     `json:"projection"`
	Load       bool       `json:"load"`  // it fills the index that is in use, and nothing else
	Phase      string     `json:"phase"` // requested, filling, verifying, swapping, done, aborted or failed
	Paused     bool       `json:"paused"`
	Asked      string     `json:"asked"` // of the leader, and not done yet: abort or drop_old
	OldIndex   string     `json:"old_index"`
	NewIndex   string     `json:"new_index"`
	Rows       int64      `json:"rows"` // of the source, about
	Filled     int64      `json:"filled"`
	ETASecs    *float64   `json:"eta_seconds"` // of the fill, while somebody leads; null when it cannot be told
	Unreadable int64      `json:"unreadable"`
	Redo       int64      `json:"redo"` // entities to be written again; at most 10,000 are counted
	Note       string     `json:"note"`
	By         string     `json:"by"`
	Why        string     `json:"why"`
	BeganAt    time.Time  `json:"began_at"`
	UpdatedAt  time.Time  `json:"updated_at"`
	FinishedAt *time.Time `json:"finished_at"`
}

// DescribeRebuild is the JSON form of r.
func DescribeRebuild(projection string, r outbox.Rebuild) Rebuild {
	s := Rebuild{
		Projection: projection, Load: r.Load, Phase: string(r.Phase), Paused: r.Paused, Asked: string(r.Asked), OldIndex: r.OldIndex, NewIndex: r.NewIndex,
		Rows: r.Rows, Filled: r.Filled, Unreadable: r.Unreadable, Redo: r.Redo, Note: r.Note, By: r.By, Why: r.Why,
		BeganAt: r.Began.UTC(), UpdatedAt: r.Updated.UTC(), FinishedAt: UTC(r.Finished),
	}
	if r.Phase == outbox.RebuildFilling && r.Filled > 0 && r.Rows > r.Filled && !r.Paused {
		left := r.Led.Seconds() / float64(r.Filled) * float64(r.Rows-r.Filled)
		s.ETASecs = &left
	}
	return s
}

// Kind says whether it is a rebuild or a load.
func (s Rebuild) Kind() string {
	if s.Load {
		return "load"
	}
	return "rebuild"
}

// Line tells of a rebuild in a few words.
func (s Rebuild) Line() string {
	var b strings.Builder
	b.WriteString(s.Projection + ": ")
	if s.Load {
		b.WriteString("load, ")
	}
	b.WriteString(s.Phase)
	if s.Paused {
		b.WriteString(", paused")
	}
	if s.Asked != "" {
		b.WriteString(", the leader is asked to " + strings.ReplaceAll(s.Asked, "_", " "))
	}
	if s.NewIndex != "" {
		fmt.Fprintf(&b, "; new index %s", s.NewIndex)
	}
	if s.OldIndex != "" {
		fmt.Fprintf(&b, ", old index %s", s.OldIndex)
	}
	fmt.Fprintf(&b, "; %d of about %s", s.Filled, Counted(max(s.Rows, s.Filled), "1 row", "%d rows"))
	if s.ETASecs != nil {
		fmt.Fprintf(&b, ", about %s left", Span(*s.ETASecs))
	}
	switch {
	case s.Unreadable > 0 && s.Load:
		fmt.Fprintf(&b, ", %s an event, which fails and says why", Counted(s.Unreadable, "1 row got", "%d rows got"))
	case s.Unreadable > 0:
		fmt.Fprintf(&b, ", %s (rebuild.unreadable in the leader's log says which)", Counted(s.Unreadable, "1 row has no document", "%d rows have no document"))
	}
	switch {
	case s.Redo >= outbox.MostRedo:
		fmt.Fprintf(&b, ", at least %d entities are to be written again", s.Redo)
	case s.Redo > 0:
		fmt.Fprintf(&b, ", %s to be written again", Counted(s.Redo, "1 entity is", "%d entities are"))
	}
	if s.Note != "" {
		b.WriteString("; " + Plain(s.Note))
	}
	return b.String()
}
