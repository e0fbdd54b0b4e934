package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/samuelhu324-dev/weft/internal/config"
	"github.com/samuelhu324-dev/weft/leader"
	"github.com/samuelhu324-dev/weft/outbox"
)

// eventStory is the JSON form of one event. Names and units stay; fields may be added.
type eventStory struct {
	Projection   string      `json:"projection"`
	Table        string      `json:"table"`
	ID           string      `json:"id"`
	Place        string      `json:"place"`  // ready, due, waiting, behind, in_flight, claimed, failed, done, archived, other
	Status       string      `json:"status"` // the column
	EntityType   string      `json:"entity_type"`
	EntityID     string      `json:"entity_id"`
	Op           string      `json:"op"`
	EventVersion int64       `json:"event_version"`
	CreatedAt    *time.Time  `json:"created_at"`
	UpdatedAt    *time.Time  `json:"updated_at"`
	ProcessedAt  *time.Time  `json:"processed_at"`
	NextRetryAt  *time.Time  `json:"next_retry_at"`
	Behind       *int64      `json:"behind_version"`
	Attempts     int         `json:"attempts"`
	Reclaims     int         `json:"reclaims"`
	Reason       string      `json:"error_reason"`
	Error        string      `json:"error"`
	Lease        *eventLease `json:"lease"` // in flight, or claimed by another worker
	Partition    string      `json:"partition"`
	TraceID      string      `json:"trace_id"`
	Traceparent  string      `json:"traceparent"`
	Tracestate   string      `json:"tracestate"`
	Replays      int         `json:"replay_count"`
	ReplayedAt   *time.Time  `json:"last_replayed_at"`
	ReplayedBy   string      `json:"last_replayed_by"`
	ReplayReason string      `json:"last_replayed_reason"`

	DiscardedAt   *time.Time `json:"discarded_at"` // null unless it was discarded
	DiscardedBy   string     `json:"discarded_by"`
	DiscardReason string     `json:"discarded_reason"`

	Before     []eventAhead `json:"before"`      // open events of the entity that go first
	BeforeMore bool         `json:"before_more"` // there are more of them
	Advice     string       `json:"advice"`
}

type eventLease struct {
	Batch string     `json:"batch"` // empty for another worker
	Owner string     `json:"owner"`
	Epoch int64      `json:"epoch"` // 0 for another worker
	Since *time.Time `json:"since"`
	Until *time.Time `json:"until"`
}

type eventAhead struct {
	ID           string     `json:"id"`
	EventVersion int64      `json:"event_version"`
	Status       string     `json:"status"`
	InFlight     bool       `json:"in_flight"`
	NextRetryAt  *time.Time `json:"next_retry_at"`
	Behind       *int64     `json:"behind_version"`
}

func (a *app) eventCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "event ID",
		Short: "Show where an event is, and what to do about it",
		Long: `Show all that is known of one event, wherever it is: waiting (and for what), in flight (and
under whose lease), failed, done, or archived in the history; what of its entity goes before
it; and what to do. ID is the id of the outbox row, a UUID or a number.

The outbox table and the days of the history that are over are searched by index. The day
that is being written has none: an event that was archived today, or is nowhere, takes as
long as reading that day does, at most --db-timeout for each day.

Exits 0 when it is found; 1 when it is not; 3 when a day could not be read in time, so that
it may be there.`,
		Example: `  weft event 7b0e4c52-8f55-4d4e-9a3e-3f0b6f1d2c11
  weft event 4711 --json`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usage(cmd, "want the id of one event")
			}
			if _, ok := eventID(args[0]); !ok {
				return usage(cmd, fmt.Sprintf("%q is no id of an event: want a UUID or a number", args[0]))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			id, _ := eventID(args[0])
			return a.reading(cmd, func(ctx context.Context, cfg config.Config, pool *pgxpool.Pool) error {
				found, searches, err := findEvent(ctx, pool, cfg, id)
				if err != nil {
					return err
				}
				err = a.show(asJSON, found, func(w io.Writer) error { return writeStories(w, found) })
				if err == nil && len(found) == 0 {
					err = notFound(id, searches)
				}
				return err
			})
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	databaseFlags(cmd, "group", "projections", "outbox.max_processing")
	return cmd
}

// findEvent looks for an event in the tables of the configured projections. A number may be
// an event of more than one.
func findEvent(ctx context.Context, pool *pgxpool.Pool, cfg config.Config, id outbox.ID) (found []eventStory, searches []outbox.Search, err error) {
	found = []eventStory{}
	for _, name := range cfg.Projections {
		table := cfg.Registry().Table(name)
		stories, err := outbox.OpenStories(ctx, pool, table, cfg.Database.Timeout)
		if err != nil {
			return nil, nil, err
		}
		s, search, err := stories.Find(ctx, id)
		if err != nil {
			return nil, nil, err
		}
		searches = append(searches, search)
		if s == nil {
			continue
		}
		state, err := leader.ReadState(ctx, pool, cfg.Group)
		if err != nil {
			return nil, nil, err
		}
		e := describeEvent(s)
		e.Projection, e.Table = name, table
		e.Advice = advise(s, state, cfg.Outbox.MaxProcessing)
		found = append(found, e)
	}
	return found, searches, nil
}

// notFound says where the event was looked for.
func notFound(id outbox.ID, searches []outbox.Search) error {
	var skipped []string
	var since time.Time
	days := 0
	for _, s := range searches {
		skipped = append(skipped, s.Skipped...)
		days += s.Partitions
		if !s.Since.IsZero() && (since.IsZero() || s.Since.Before(since)) {
			since = s.Since
		}
	}
	if len(skipped) > 0 {
		return &exitError{exitInconclusive, fmt.Sprintf("event %s is in no outbox table and no day of the history that could be searched; %s took too long: try again with a longer --db-timeout",
			id, strings.Join(skipped, ", "))}
	}
	where := "no outbox table, and there is no history"
	if days > 0 {
		where = fmt.Sprintf("no outbox table and none of %d days of the history since %s", days, since.UTC().Format(time.DateOnly))
	}
	return &exitError{exitBad, fmt.Sprintf("event %s is in %s: it was done and deleted, or pruned, or there never was one; see `weft audit --action prune`", id, where)}
}

func describeEvent(s *outbox.Story) eventStory {
	e := eventStory{
		ID: s.Row.ID.String(), Place: string(s.Place), Status: s.Status, EntityType: s.Row.Key.Type, EntityID: s.Row.Key.ID.String(),
		Op: string(s.Op), EventVersion: s.Row.Version, CreatedAt: utc(s.CreatedAt), UpdatedAt: utc(s.UpdatedAt), ProcessedAt: utc(s.DoneAt),
		NextRetryAt: utc(s.RetryAt), Behind: s.Behind, Attempts: s.Attempts, Reclaims: s.Reclaims, Reason: s.Reason, Error: s.Error,
		Partition: s.Partition, TraceID: s.TraceID(), Traceparent: s.Traceparent, Tracestate: s.Tracestate, Replays: s.Replays,
		ReplayedAt: utc(s.ReplayedAt), ReplayedBy: s.ReplayedBy, ReplayReason: s.ReplayReason, Before: []eventAhead{}, BeforeMore: s.More,
		DiscardedAt: utc(s.DiscardedAt), DiscardedBy: s.DiscardedBy, DiscardReason: s.DiscardReason,
	}
	for _, l := range []*outbox.StoryLease{s.Lease, s.Claim} {
		if l != nil {
			e.Lease = &eventLease{Batch: l.Batch, Owner: l.Owner, Epoch: l.Epoch, Since: utc(l.Since), Until: utc(l.Until)}
		}
	}
	for _, b := range s.Before {
		e.Before = append(e.Before, eventAhead{ID: b.ID.String(), EventVersion: b.Version, Status: b.Status, InFlight: b.InFlight, NextRetryAt: utc(b.RetryAt), Behind: b.Behind})
	}
	return e
}
