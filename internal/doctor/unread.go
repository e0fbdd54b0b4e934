package doctor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/samuelhu324-dev/weft/internal/postgres"
	"github.com/samuelhu324-dev/weft/internal/records"
	"github.com/samuelhu324-dev/weft/migrations"
	"github.com/samuelhu324-dev/weft/outbox"
)

// mostUnread events of each kind are counted.
const mostUnread = 10_000

// unread names the outboxes that triggers fill and nobody empties: those with open events that no projection of this
// configuration has, and no term that runs, of whatever group.
func (e *examination) unread(ctx context.Context) error {
	made, err := migrations.ListOutboxes(ctx, e.Pool)
	if kind, _ := postgres.Diagnose(err); kind == postgres.PermissionDenied { // a role that only runs instances need not know
		return nil
	}
	if err != nil {
		return err
	}
	var read []string
	var errs []error
	for _, name := range e.Config.Projections {
		read = append(read, e.Config.Registry().Table(name))
	}
	for _, o := range made {
		if slices.Contains(read, o.Name) {
			continue
		}
		reader, err := e.occupant(ctx, o.Name, "")
		if err != nil {
			return err
		}
		if reader.lives {
			continue
		}
		errs = append(errs, e.nobodyReads(ctx, o, reader.group))
	}
	return errors.Join(errs...)
}

// nobodyReads says how much waits in an outbox; last is the group that has read it, if one has.
func (e *examination) nobodyReads(ctx context.Context, o migrations.Outbox, last string) error {
	severity := Warning
	var waits string
	st, err := e.waiting(ctx, o.Name)
	kind, _ := postgres.Diagnose(err)
	switch {
	case kind == postgres.PermissionDenied:
		severity, waits = Note, "the role may not count its events"
	case err != nil || st.Lag() == 0:
		return err
	default:
		waits = records.Counted(int(st.Lag()), "1 event waits", "%d events wait")
		if max(st.Pending, st.Retrying) >= mostUnread {
			waits = fmt.Sprintf("%d events or more wait", st.Lag())
		}
		waits += ", the oldest for " + ago(st.Oldest)
	}
	nobody := "no projection of this configuration reads it, and no leader"
	if last != "" && last != e.Config.Group {
		nobody += " any more (the last one was of the group " + last + ")"
	}
	e.add("schema.unread", severity, o.Name, nobody+": "+waits+". Each change of "+o.Source+" adds one",
		"start instances that declare a projection with outbox.table "+o.Name+"; or, if nobody needs it, `weft outbox drop --name "+records.ShellWord(o.Name)+" --force --apply`")
	return nil
}

// waiting counts the open events of an outbox.
func (e *examination) waiting(ctx context.Context, table string) (st outbox.Stats, err error) {
	store, err := outbox.OpenStore(ctx, e.Pool, outbox.StoreConfig{
		Table: table, Projection: "none", Group: e.Config.Group, Owner: "doctor", Lease: time.Second, Timeout: e.Config.Database.Timeout})
	if err == nil {
		st, err = store.Stats(ctx, time.Hour, mostUnread)
	}
	return st, err
}
