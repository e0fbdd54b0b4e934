package consumer

import (
	"context"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/samuelhu324-dev/weft/outbox"
)

// call runs the projection under its deadline, or a shorter one. A panic and a wrong
// number of outcomes are faults of unknown reason, not the end of the process.
func (p *Pipeline) call(ctx context.Context, events []outbox.Event, limit time.Duration) (out []outbox.Outcome, err error) {
	d := p.cfg.ProjectTimeout
	if limit > 0 {
		d = min(d, limit)
	}
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	defer func() {
		if v := recover(); v != nil {
			p.tell.Panic(ctx, v, debug.Stack())
			out, err = nil, &outbox.Fault{Reason: outbox.ReasonUnknown, Err: fmt.Errorf("panic: %v", v)}
		}
	}()
	out, err = p.proj.Project(ctx, events)
	if len(out) != len(events) && (err == nil || len(out) > 0) {
		err = fmt.Errorf("%d outcomes for %d events", len(out), len(events))
		return nil, &outbox.Fault{Reason: outbox.ReasonUnknown, Err: err}
	}
	return out, err
}
