package records

import (
	"fmt"
	"time"

	"github.com/samuelhu324-dev/weft/outbox"
)

// Pause is the JSON form of the pause of a projection.
type Pause struct {
	By   string    `json:"by"`
	Why  string    `json:"why"`
	At   time.Time `json:"at"`
	Secs float64   `json:"seconds"` // since then
}

// DescribePause is the JSON form of p, null for none.
func DescribePause(p *outbox.Pause) *Pause {
	if p == nil {
		return nil
	}
	return &Pause{By: p.By, Why: p.Why, At: p.At.UTC(), Secs: p.For.Seconds()}
}

// Line tells of the pause in a few words.
func (p *Pause) Line() string {
	return fmt.Sprintf("paused by %s at %s (%s ago): %s", Plain(p.By), p.At.Format(time.RFC3339), Span(p.Secs), Plain(p.Why))
}
