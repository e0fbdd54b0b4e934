package desk

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/samuelhu324-dev/weft/internal/records"
	"github.com/samuelhu324-dev/weft/outbox"
)

const (
	pageSize    = 50
	countMost   = 10_000 // dead letters that are counted
	longestText = 200    // of a filter
)

// errNotFound is wrapped by what says that something is nowhere.
var errNotFound = errors.New("not found")

// lettersView is a page of dead letters, with what its form offers.
type lettersView struct {
	records.LetterPage
	Projections []string `json:"projections"`
	NextPage    string   `json:"-"`
}

// failed reads a page of the dead letters of one projection.
func (s *Server) failed(ctx context.Context, q query) (any, error) {
	out := lettersView{LetterPage: records.LetterPage{Listed: []records.DeadLetter{}}, Projections: s.projections()}
	table, err := s.table(q)
	if err != nil {
		return out, err
	}
	out.Projection = table.Projection
	letters, err := outbox.OpenDeadLetters(ctx, s.o.DB, table.Name, table.Projection, s.o.Scope.Timeout)
	if err != nil {
		return out, err
	}
	sel, err := s.selector(ctx, q, letters)
	if err != nil {
		return out, err
	}
	found, err := records.ReadLetterPage(ctx, letters, sel, pageSize, countMost)
	if err != nil {
		return out, err
	}
	out.LetterPage = found
	if m := found.After; m != nil {
		out.Next = m.ID.String()
		if m.FailedAt != nil {
			out.Next += "@" + m.FailedAt.UTC().Format(time.RFC3339Nano)
		}
		out.NextPage = "/failed?" + q.with("after", out.Next)
	}
	return out, nil
}

// selector reads the filters of dead letters.
func (s *Server) selector(ctx context.Context, q query, letters *outbox.DeadLetters) (sel outbox.Selector, err error) {
	for name, value := range q {
		if len(value) > longestText {
			return sel, badRequest{fmt.Errorf("%s: at most %d bytes", name, longestText)}
		}
	}
	sel.Text, sel.Reason = q["text"], q["reason"]
	if sel.Reason != "" && !slices.Contains(reasonNames(), sel.Reason) {
		return sel, badRequest{fmt.Errorf("reason %q is none of the reasons", sel.Reason)}
	}
	switch q["discarded"] {
	case "", "no":
	case "yes":
		sel.Discarded = true
	default:
		return sel, badRequest{fmt.Errorf("discarded %q: want yes or no", q["discarded"])}
	}
	if text := q["entity"]; text != "" {
		if sel.EntityType, sel.EntityID, err = records.Entity(text); err != nil {
			return sel, badRequest{fmt.Errorf("entity %q: %w", text, err)}
		}
	}
	if !sel.EntityID.IsZero() {
		if _, err := outbox.ParseID(letters.Shape().Entity, sel.EntityID.String()); err != nil {
			return sel, badRequest{fmt.Errorf("entity %q: want a %s here", sel.EntityID, letters.Shape().Entity)}
		}
	}
	if text := q["after"]; text != "" {
		if sel.After, err = mark(text); err != nil {
			return sel, err
		}
	}
	sel.Since, sel.Until, err = s.period(ctx, q)
	return sel, err
}

// period reads since and until, by the database's clock.
func (s *Server) period(ctx context.Context, q query) (since, until time.Time, err error) {
	var from, to records.Moment
	for name, m := range map[string]*records.Moment{"since": &from, "until": &to} {
		if text := q[name]; text != "" {
			if err := m.Set(text); err != nil {
				return since, until, badRequest{fmt.Errorf("%s %q: %w", name, text, err)}
			}
		}
	}
	if !from.Given() && !to.Given() {
		return since, until, nil
	}
	now, err := records.Now(ctx, s.o.DB, s.o.Scope.Timeout)
	return from.Resolve(now), to.Resolve(now), err
}

// mark reads the cursor of a page.
func mark(text string) (*outbox.Mark, error) {
	idText, at, dated := strings.Cut(text, "@")
	id, ok := records.EventID(idText)
	m := &outbox.Mark{ID: id}
	if dated {
		t, err := time.Parse(time.RFC3339Nano, at)
		ok = ok && err == nil
		m.FailedAt = &t
	}
	if !ok {
		return nil, badRequest{fmt.Errorf("after %q is no place in a list", text)}
	}
	return m, nil
}

// with returns the query with one parameter changed, encoded.
func (q query) with(name, value string) string {
	v := url.Values{}
	for n, text := range q {
		if text != "" {
			v.Set(n, text)
		}
	}
	v.Set(name, value)
	return v.Encode()
}

// event reads the story of one event.
func (s *Server) event(ctx context.Context, q query) (any, error) {
	none := []records.Story{}
	if q["id"] == "" {
		return none, nil
	}
	id, ok := records.EventID(q["id"])
	if !ok {
		return none, badRequest{fmt.Errorf("%q is no id of an event: want a UUID or a number", q["id"])}
	}
	found, searches, err := records.FindEvent(ctx, s.o.DB, s.o.Scope, id)
	if kind, ok := errors.AsType[*records.KindError](err); ok {
		return none, badRequest{kind}
	}
	if err != nil || len(found) > 0 {
		return found, err
	}
	for _, search := range searches {
		if len(search.Skipped) > 0 {
			return none, fmt.Errorf("event %s: %w in what could be searched in time; %s took too long: try weft event with a longer --db-timeout",
				id, errNotFound, strings.Join(search.Skipped, ", "))
		}
	}
	return none, fmt.Errorf("event %s: %w: it was done and deleted, or pruned, or there never was one; see the audit for prune", id, errNotFound)
}

// auditView is a page of the audit.
type auditView struct {
	Entries  []records.AuditEntry `json:"entries"`
	Next     int64                `json:"next"` // cursor of the next page; 0 on the last
	NextPage string               `json:"-"`
}

// audit reads a page of the audit.
func (s *Server) audit(ctx context.Context, q query) (any, error) {
	out := auditView{Entries: []records.AuditEntry{}}
	f := outbox.AuditFilter{Action: q["action"], Actor: q["by"], Projection: q["projection"], Limit: pageSize + 1}
	var err error
	if text := q["before"]; text != "" {
		if f.Before, err = strconv.ParseInt(text, 10, 64); err != nil || f.Before < 1 {
			return out, badRequest{fmt.Errorf("before %q: want the id of an entry", text)}
		}
	}
	if f.Since, _, err = s.period(ctx, query{"since": q["since"]}); err != nil {
		return out, err
	}
	found, err := outbox.ReadAudit(ctx, s.o.DB, f, s.o.Scope.Timeout)
	if err != nil {
		return out, err
	}
	if len(found) > pageSize {
		found = found[:pageSize]
		out.Next = found[pageSize-1].ID
		out.NextPage = "/audit?" + q.with("before", strconv.FormatInt(out.Next, 10))
	}
	out.Entries = records.AuditEntries(found)
	return out, nil
}
