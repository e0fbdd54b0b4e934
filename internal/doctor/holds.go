package doctor

import (
	"context"
	"time"

	"github.com/samuelhu324-dev/weft/internal/records"
	"github.com/samuelhu324-dev/weft/outbox"
)

// forgotten is how long a hold lasts before it counts as one that nobody thinks of any more.
const forgotten = 24 * time.Hour

// holds names what operators hold back, and the command that ends it.
func (e *examination) holds(ctx context.Context) error {
	for _, name := range e.Config.Projections {
		h, err := outbox.ReadHolds(ctx, e.Pool, e.Config.Group, name, e.Config.Database.Timeout)
		if err != nil {
			return err
		}
		hold := func(since time.Duration, text, remedy string) {
			s := Note
			if since > forgotten {
				s = Warning
			}
			e.add("holds", s, name, text, remedy+` --by YOU --why "…"`)
		}
		if p := h.Pause; p != nil {
			hold(p.For, p.String()+": nothing of it is carried", "weft resume "+name)
		}
		if t := h.Throttle; t != nil {
			hold(t.For, t.String(), "weft throttle "+name+" --off")
		}
		if n := len(h.Quarantines); n > 0 {
			q := h.Quarantines[0]
			text := q.String() + ": its events wait"
			if n > 1 {
				text += "; so do those of " + records.Counted(n-1, "1 more entity", "%d more entities")
			}
			hold(q.For, text, "weft release "+records.ShellWord(q.EntityType+":"+q.EntityID))
		}
	}
	return nil
}
