package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/samuelhu324-dev/weft/internal/config"
	"github.com/samuelhu324-dev/weft/internal/records"
	"github.com/samuelhu324-dev/weft/leader"
)

// pastTerm is the JSON form of one term. Names and units stay; fields may be added.
type pastTerm struct {
	Epoch         int64      `json:"epoch"`
	Instance      string     `json:"instance"`
	AcquiredAt    time.Time  `json:"acquired_at"`
	EndedAt       *time.Time `json:"ended_at"`   // null while it runs
	EndReason     string     `json:"end_reason"` // empty while it runs
	Cause         string     `json:"cause"`      // the same in words
	LastedSecs    float64    `json:"lasted_seconds"`
	TakeoverSecs  *float64   `json:"takeover_seconds"` // until the next term began; null when nobody knows
	Next          string     `json:"next_instance"`
	AskedBy       string     `json:"asked_by"` // who asked for a hand-over
	AskedWhy      string     `json:"asked_why"`
	SessionsEnded int        `json:"sessions_ended"`
}

func (a *app) historyCommand() *cobra.Command {
	var (
		since records.Moment
		limit int
	)
	cmd := &cobra.Command{
		Use:   "history",
		Short: "Show who led when, why each term ended and how long the takeover took",
		Long: `Show the terms of the group, the newest first: who led, from when, for how long, why the term
ended, and how long nobody led after it (TAKEOVER). A leader that was killed records no end:
its successor closes the term as it begins its own, so that the takeover has no number here;
the metrics and the log of the successor have its time.`,
		Example: `  weft history
  weft history --since 24h --json`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.reading(cmd, func(ctx context.Context, cfg config.Config, pool *pgxpool.Pool) error {
				now, err := records.Now(ctx, pool, preflightTimeout)
				if err != nil {
					return err
				}
				found, err := leader.History(ctx, pool, cfg.Group, since.Resolve(now), beyond(limit))
				if err != nil {
					return err
				}
				found, more := cut(found, limit)
				terms := describeTerms(found)
				return a.show(terms, func(w io.Writer) error { return cmp.Or(writeTerms(w, terms), more(w)) })
			})
		},
	}
	cmd.Flags().Var(&since, "since", "only terms that ran since then: a time, or a duration ago")
	countFlag(cmd, &limit, "limit", 20, 1, "show at most this many")
	a.jsonFlags(cmd, "group")
	return cmd
}

func describeTerms(found []leader.PastTerm) []pastTerm {
	out := make([]pastTerm, len(found))
	for i, t := range found {
		out[i] = pastTerm{
			Epoch: t.Epoch, Instance: t.Instance, AcquiredAt: t.AcquiredAt.UTC(), EndedAt: records.UTC(t.EndedAt), EndReason: t.EndReason, Cause: causeOf(t),
			LastedSecs: t.Lasted.Seconds(), Next: t.Next, AskedBy: t.AskedBy, AskedWhy: t.AskedWhy, SessionsEnded: t.SessionsEnded,
		}
		if t.Vacant != nil {
			s := t.Vacant.Seconds()
			out[i].TakeoverSecs = &s
		}
	}
	return out
}

// causeOf says in words why a term ended.
func causeOf(t leader.PastTerm) string {
	text, known := map[string]string{
		"":               "not ended",
		"stopped":        "it was stopped in order",
		"resigned":       "it was asked to hand over",
		"work_returned":  "its work ended unasked",
		"work_failed":    "its work failed",
		"work_panicked":  "its work panicked",
		"session_closed": "its session with Postgres was closed",
		"trust_expired":  "it could not prove its leadership in time: frozen, starved or cut off",
		"lock_lost":      "its session had lost the lock",
		"epoch_replaced": "another term had begun",
		"replaced":       "it was lost without a word: killed, frozen or cut off",
	}[t.EndReason]
	if !known {
		text = t.EndReason
	}
	if t.AskedBy != "" {
		text += fmt.Sprintf(" (by %s: %s)", t.AskedBy, t.AskedWhy)
	}
	if t.SessionsEnded > 0 {
		text += fmt.Sprintf("; %s ended %d of its sessions", t.Next, t.SessionsEnded)
	}
	return text
}

func writeTerms(w io.Writer, terms []pastTerm) error {
	if len(terms) == 0 {
		_, err := fmt.Fprintln(w, "no terms")
		return err
	}
	tab := newTable(w, "EPOCH", "LEADER", "SINCE", "ENDED", "LASTED", "TAKEOVER", "NEXT", "WHY IT ENDED")
	for _, t := range terms {
		takeover := "-"
		if t.TakeoverSecs != nil {
			takeover = records.Span(*t.TakeoverSecs)
		}
		tab.row(t.Epoch, records.Plain(t.Instance), records.Clock(&t.AcquiredAt), records.Clock(t.EndedAt), records.Span(t.LastedSecs),
			takeover, records.Dash(records.Plain(t.Next)), records.Plain(t.Cause))
	}
	return tab.Flush()
}
