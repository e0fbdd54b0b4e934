package desk

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/samuelhu324-dev/weft/internal/records"
	"github.com/samuelhu324-dev/weft/internal/replay"
	"github.com/samuelhu324-dev/weft/outbox"
)

const (
	replayRate = 500 // events in a second
	replayWait = 30 * time.Second
	mostIDs    = 4 * pageSize
)

// planSelected plans a replay or a discard of the dead letters that are named by their ids.
func (s *Server) planSelected(ctx context.Context, db outbox.DB, q query) (plan, error) {
	ids, err := readIDs(q["id"])
	if err != nil {
		return plan{}, err
	}
	return s.planLetters(ctx, db, query{"projection": q["projection"], "until": q["until"]}, ids)
}

// planAll plans a replay or a discard of all that the filter finds.
func (s *Server) planAll(ctx context.Context, db outbox.DB, q query) (plan, error) {
	filter := query{"projection": q["projection"]}
	for _, name := range filters() {
		filter[name] = q[name]
	}
	return s.planLetters(ctx, db, filter, nil)
}

// filters are the parameters that select dead letters of a projection.
func filters() []string { return []string{"reason", "entity", "since", "until", "text", "discarded"} }

func readIDs(text string) (ids []outbox.ID, err error) {
	if text == "" {
		return nil, badRequest{errors.New("no event is selected")}
	}
	for one := range strings.SplitSeq(text, ",") {
		id, ok := records.EventID(one)
		if !ok {
			return nil, badRequest{fmt.Errorf("%q is no id of an event: want a UUID or a number", one)}
		}
		ids = append(ids, id)
	}
	if len(ids) > mostIDs {
		return nil, badRequest{fmt.Errorf("%d events are selected: at most %d at once; a filter takes any number", len(ids), mostIDs)}
	}
	return ids, nil
}

// planLetters counts what the filter finds now. What fails later is left out: the plan's own
// end of the period is the time of the preview, by the database's clock.
func (s *Server) planLetters(ctx context.Context, db outbox.DB, filter query, ids []outbox.ID) (p plan, err error) {
	table, err := s.table(filter)
	if err != nil {
		return p, err
	}
	p.Projection = table.Projection
	if p.letters, err = outbox.OpenDeadLetters(ctx, db, table.Name, table.Projection, s.o.Timeout); err != nil {
		return p, err
	}
	if p.sel, err = s.selector(ctx, filter, p.letters); err != nil {
		return p, err
	}
	now, err := records.Now(ctx, db, s.o.Timeout)
	if err != nil {
		return p, err
	}
	p.sel.IDs = ids
	if p.sel.Until.IsZero() || p.sel.Until.After(now) {
		p.sel.Until = now
	}
	if p.Groups, err = records.Summarize(ctx, []*outbox.DeadLetters{p.letters}, p.sel); err != nil {
		return p, err
	}
	for _, g := range p.Groups {
		p.Count += g.Rows
	}
	p.State = records.Counted(p.Count, "1 event", "%d events")
	discarded := ""
	if len(ids) > 0 { // a filter finds those alone, or the others
		of := p.sel
		of.Discarded = true
		n, err := p.letters.Count(ctx, of, 0)
		if err != nil {
			return p, err
		}
		if n > 0 {
			discarded = fmt.Sprintf(", %d of them discarded", n)
		}
	}
	p.State += discarded
	p.Fields = map[string]string{"until": p.sel.Until.UTC().Format(time.RFC3339Nano)}
	var words []string
	for _, name := range filters() {
		if text := filter[name]; text != "" {
			p.Fields[name] = text
			words = append(words, name+" "+text)
		}
	}
	if !p.sel.Since.IsZero() {
		p.Fields["since"] = p.sel.Since.UTC().Format(time.RFC3339Nano)
	}
	p.Fields["until"] = p.sel.Until.UTC().Format(time.RFC3339Nano)
	switch {
	case len(ids) > 0:
		texts := make([]string, len(ids))
		for i, id := range ids {
			texts[i] = id.String()
		}
		p.Fields["id"] = strings.Join(texts, ",")
		p.What = fmt.Sprintf("%d of %s of %s%s", p.Count, records.Counted(len(ids), "1 selected event", "the %d selected events"), p.Projection, discarded)
	case len(words) > 0:
		p.What = fmt.Sprintf("%s of %s: %s", records.Counted(p.Count, "1 dead letter", "%d dead letters"), p.Projection, strings.Join(words, ", "))
	default:
		p.What = records.Counted(p.Count, "the one dead letter of ", "all %d dead letters of ") + p.Projection
	}
	return p, nil
}

// order is what the plan orders in the name of a job's owner.
func (p plan) order(job *Job) outbox.LetterOrder {
	return outbox.LetterOrder{By: job.By, Why: job.Why, Selector: p.sel}
}

// replay sends dead letters again, as weft replay does.
func (s *Server) replay(ctx context.Context, p plan, job *Job) (string, error) {
	res, err := replay.Run(ctx, p.letters, replay.Config{
		Order: p.order(job), Rate: replayRate, Wait: replayWait,
		DB: s.o.ActDB, Group: s.o.Scope.Group, Timeout: s.o.Scope.Timeout,
		Progress: s.progress(job),
		Note:     func(text string) { s.jobs.change(func() { job.Result = text }) },
	})
	s.progress(job)(res.Progress)
	switch {
	case res.Matched == 0 && err != nil:
		return "nothing was replayed", err
	case res.Matched == 0:
		return "nothing was left to replay", nil
	case !res.Watched && err == nil:
		return fmt.Sprintf("%d of %d replayed; nobody leads, so they wait for an instance", res.Sent, res.Matched), nil
	}
	text := fmt.Sprintf("%s: %d of %d replayed: %d done, %d failed again, %d not settled yet", res.Outcome, res.Sent, res.Matched, res.Done, res.Failed, res.Open)
	if res.Failed > 0 {
		text += fmt.Sprintf("; one of those that failed: %s: %s", res.Reason, res.Error)
	}
	return text, err
}

// discard gives dead letters up, as weft failed discard does.
func (s *Server) discard(ctx context.Context, p plan, job *Job) (string, error) {
	res, err := p.letters.Discard(ctx, p.order(job))
	s.jobs.change(func() { job.Matched, job.Sent, job.Skipped = res.Matched, res.Discarded, res.Skipped })
	if res.Matched == 0 && err != nil {
		return "nothing was discarded", err
	}
	text := fmt.Sprintf("%s: %d of %d discarded", res.Outcome, res.Discarded, res.Matched)
	if res.Skipped > 0 {
		text += fmt.Sprintf(", %d passed over because they were discarded before or have changed", res.Skipped)
	}
	return text, err
}
