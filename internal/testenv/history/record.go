package history

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
	"unique"

	"github.com/jackc/pgx/v5"

	"github.com/samuelhu324-dev/weft/outbox"
)

const (
	timeout = 30 * time.Second
	// readTimeout bounds the reading of a whole record: a million changes take some
	// fifteen seconds.
	readTimeout = 5 * time.Minute
)

// Status is the value of the column of that name, or what became of the row.
type Status string

// The states of an event; the empty Status is that of an event before it was enqueued.
const (
	Pending    Status = "pending"
	Processing Status = "processing" // claimed in the row: by another worker, or by an older build of weft
	Done       Status = "done"
	Failed     Status = "failed"
	Archived   Status = "archived" // done, and moved to the history table
	Deleted    Status = "deleted"  // the row has left the table, and is in no history
)

// open reports whether an event in this state is still to be done.
func (s Status) open() bool { return s == Pending || s == Processing }

// Change is one change of one event.
type Change struct {
	Seq      int64     // grows with the time of the statement; ties of At are resolved by it
	Tx       uint64    // transaction
	At       time.Time // when the transaction committed; see [Log.Exact]
	Event    outbox.ID
	Key      outbox.Key
	Version  int64
	Op       outbox.Op
	From, To Status // From is empty when the event was enqueued; both are archived for a row that came into the history and left no table
	Owner    string // who held the lease that the transaction ended, or claims the row, or did; empty when there was no lease
	Epoch    int64  // of that lease; 0 when it was claimed under none
	Attempts int    // after the change
	Reclaim  bool   // a lease taken back, by another or a later term than Epoch
	By       string // instance whose session wrote it; empty when the session is none of weft's
}

// settled reports whether c ended its event, one way or the other.
func (c *Change) settled() bool { return c.From.open() && !c.To.open() }

// Done reports whether c is the end of an event that was projected, whatever becomes of
// its row.
func (c *Change) Done() bool { return c.settled() && c.To != Failed }

// Settles reports whether c is the verdict of who held the event: done, failed or a retry.
func (c *Change) Settles() bool {
	return c.From.open() && c.To != Processing && !c.Reclaim && c.Owner != ""
}

// Term is the begin of a term of leadership.
type Term struct {
	Seq      int64
	At       time.Time // when the epoch committed
	Epoch    int64
	Instance string
}

// SourceChange is one change of a row of search_index.
type SourceChange struct {
	Seq     int64
	Tx      uint64
	At      time.Time // when the transaction committed
	Key     outbox.Key
	Version int64 // of the row; the last one it had when Deleted
	Deleted bool
}

// Row is an event as the outbox table has it at the end.
type Row struct {
	Event  outbox.ID
	Status Status
}

// Log is the record of one outbox table and one leader group.
type Log struct {
	Exact   bool           // At is the time of commit; otherwise that of the statement
	Changes []Change       // in the order of At; changes of one transaction are adjacent
	Leases  []*Lease       // in the order of At; claims in rows are among them
	Terms   []Term         // in the order of At
	Source  []SourceChange // in the order of At; empty without [InstallSource]
	Rows    []Row          // of the table at the end
	History []outbox.ID    // rows of the history table at the end

	// Finished is what weft was told to do with events that are done; empty means keep.
	// Whoever reads the log sets it.
	Finished outbox.Finished
}

const changes = `
select seq, tx, {at}, event_id, entity_type, entity_id, event_version, op,
       coalesce(old_status, ''), new_status, coalesce(owner, ''), coalesce(epoch, 0), attempts, reclaim, application
from weftlab_history
where source = $1 and seq > $2
order by 3, min(seq) over (partition by tx), seq`

const leases = `
select seq, tx, {at}, batch, owner, epoch, events is null, coalesce(events, '{}'), application
from weftlab_lease
where source = $1 and (seq > $2 or batch in (select e.batch from weftlab_lease e where e.seq > $2 and e.events is null))
order by 3, 1`

const terms = `
select seq, {at}, epoch, instance
from weftlab_terms
where group_name = $1 and seq > $2
order by 2, 1`

const source = `
select seq, tx, {at}, entity_type, entity_id, event_version, deleted
from weftlab_source
order by 3, min(seq) over (partition by tx), seq`

const position = `select case when is_called then last_value else 0 end from weftlab_seq`

// Read returns the record of table and group. It is a consistent one when nothing
// writes to the table any more.
func Read(ctx context.Context, db outbox.DB, table, group string) (*Log, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	log, at, err := since(ctx, db, table, group, 0)
	if err != nil {
		return nil, err
	}
	if log.Source, err = collect(ctx, db, strings.ReplaceAll(source, "{at}", at), scanSource); err != nil {
		return nil, fmt.Errorf("read history of search_index: %w", err)
	}
	log.Rows, err = collect(ctx, db, `select id, status from `+pgx.Identifier{table}.Sanitize(), pgx.RowToStructByPos[Row])
	if err != nil {
		return nil, fmt.Errorf("read rows of %s: %w", table, err)
	}
	there, err := archived(ctx, db, table)
	if err != nil || !there {
		return log, err
	}
	log.History, err = collect(ctx, db, `select id from `+pgx.Identifier{outbox.HistoryTable(table)}.Sanitize(), pgx.RowTo[outbox.ID])
	if err != nil {
		return nil, fmt.Errorf("read the history of %s: %w", table, err)
	}
	return log, nil
}

// Position returns where the record is now, for [Since].
func Position(ctx context.Context, db outbox.DB) (seq int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if err := db.QueryRow(ctx, position).Scan(&seq); err != nil {
		return 0, fmt.Errorf("read position of history: %w", err)
	}
	return seq, nil
}

// Since returns the changes and terms of table and group whose statements ran after
// seq. It costs the size of that part, and is for looking on while a run lasts: the
// checks want all of the record.
func Since(ctx context.Context, db outbox.DB, table, group string, seq int64) (*Log, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	log, _, err := since(ctx, db, table, group, seq)
	return log, err
}

// since also returns the expression for the time of a row.
func since(ctx context.Context, db outbox.DB, table, group string, seq int64) (log *Log, at string, err error) {
	log, at = &Log{}, "at"
	if err := db.QueryRow(ctx, `select current_setting('track_commit_timestamp')::boolean`).Scan(&log.Exact); err != nil {
		return nil, "", fmt.Errorf("read history: %w", err)
	}
	if log.Exact {
		at = "pg_xact_commit_timestamp(tx::xid)"
	}
	if log.Changes, err = collect(ctx, db, strings.ReplaceAll(changes, "{at}", at), scanChange, table, seq); err != nil {
		return nil, "", fmt.Errorf("read history of %s: %w", table, err)
	}
	marks, err := collect(ctx, db, strings.ReplaceAll(leases, "{at}", at), scanMark, table, seq)
	if err != nil {
		return nil, "", fmt.Errorf("read leases of %s: %w", table, err)
	}
	log.Changes = moves(log.Changes)
	log.attribute(marks)
	if log.Terms, err = collect(ctx, db, strings.ReplaceAll(terms, "{at}", at), pgx.RowToStructByPos[Term], group, seq); err != nil {
		return nil, "", fmt.Errorf("read terms of %s: %w", group, err)
	}
	return log, at, nil
}

func collect[T any](ctx context.Context, db outbox.DB, sql string, scan pgx.RowToFunc[T], args ...any) ([]T, error) {
	rows, _ := db.Query(ctx, sql, args...) // collecting returns its error
	return pgx.CollectRows(rows, scan)
}

// intern keeps one copy of each of the few strings that a record repeats.
func intern(s string) string { return unique.Make(s).Value() }

func scanChange(row pgx.CollectableRow) (c Change, err error) {
	var typ, op, from, to, owner, name string
	err = row.Scan(&c.Seq, &c.Tx, &c.At, &c.Event, &typ, &c.Key.ID, &c.Version, &op,
		&from, &to, &owner, &c.Epoch, &c.Attempts, &c.Reclaim, &name)
	c.Key.Type, c.Op, c.Owner = intern(typ), outbox.Op(intern(op)), intern(owner)
	c.From, c.To, c.By = Status(intern(from)), Status(intern(to)), intern(instanceOf(name))
	return c, err
}

func scanMark(row pgx.CollectableRow) (m mark, err error) {
	var owner, name string
	err = row.Scan(&m.seq, &m.tx, &m.at, &m.batch, &owner, &m.epoch, &m.end, &m.events, &name)
	m.owner, m.by = intern(owner), intern(instanceOf(name))
	return m, err
}

// instanceOf reads the application_name of a session; a name that was shortened to fit
// tells nothing.
func instanceOf(application string) string {
	parts := strings.Split(application, "/")
	if len(parts) != 4 || parts[0] != "weft" || strings.Contains(parts[2], "~") {
		return ""
	}
	return parts[2]
}

func scanSource(row pgx.CollectableRow) (c SourceChange, err error) {
	var typ string
	err = row.Scan(&c.Seq, &c.Tx, &c.At, &typ, &c.Key.ID, &c.Version, &c.Deleted)
	c.Key.Type = intern(typ)
	return c, err
}

// Story lists the record of one entity, a line for each change of its row and of its
// events, each begin and end of a lease on them, each request about its document and each
// term that began between, in the order of time. Times of requests are those of the process
// that recorded them.
func Story(log *Log, applied []Applied, key outbox.Key) string {
	type line struct {
		at   time.Time
		text string
	}
	var lines []line
	add := func(at time.Time, format string, args ...any) {
		lines = append(lines, line{at, fmt.Sprintf(format, args...)})
	}
	for i := range log.Source {
		if c := &log.Source[i]; c.Key == key {
			add(c.At, "row      %s, tx %d", c, c.Tx)
		}
	}
	mine := map[outbox.ID]bool{}
	for i := range log.Changes {
		if c := &log.Changes[i]; c.Key == key {
			mine[c.Event] = true
			add(c.At, "event    %s", c.line())
		}
	}
	for _, l := range log.Leases {
		n := 0
		for _, e := range l.Events {
			if mine[e] {
				n++
			}
		}
		if n == 0 || l.inRow() {
			continue
		}
		add(l.At, "lease    %s of %s epoch %d begins: %d of its %d events, tx %d", l.Batch, l.Owner, l.Epoch, n, len(l.Events), l.Tx)
		if !l.Ended.IsZero() {
			add(l.Ended, "lease    %s of %s epoch %d ends: %d events settled, %d reclaimed, tx %d", l.Batch, l.Owner, l.Epoch, l.Settled, l.Reclaimed, l.EndedTx)
		}
	}
	id := key.String()
	for i := range applied {
		if a := &applied[i]; a.ID == id {
			add(a.Sent, "document %s", a.line())
		}
	}
	if len(lines) == 0 {
		return ""
	}
	byAt := func(a, b line) int { return a.at.Compare(b.at) }
	slices.SortStableFunc(lines, byAt)
	first, last := lines[0].at, lines[len(lines)-1].at
	for _, t := range log.Terms {
		if !t.At.Before(first) && !t.At.After(last) {
			add(t.At, "term     epoch %d of %s", t.Epoch, t.Instance)
		}
	}
	slices.SortStableFunc(lines, byAt)
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n", key)
	for _, l := range lines {
		fmt.Fprintf(&b, "%s %s\n", l.at.UTC().Format("15:04:05.000000"), l.text)
	}
	return b.String()
}

func (c *Change) line() string {
	text := fmt.Sprintf("version %d %s %s→%s", c.Version, c.Op, cmp.Or(c.From, "new"), c.To)
	if c.Reclaim {
		text += " reclaimed from"
	}
	if c.Owner != "" {
		text += fmt.Sprintf(" %s epoch %d", c.Owner, c.Epoch)
	}
	if c.By != "" && c.By != c.Owner {
		text += " by a session of " + c.By
	}
	return text + fmt.Sprintf(" attempts %d, tx %d, event %s", c.Attempts, c.Tx, c.Event)
}

func (a *Applied) line() string {
	text := fmt.Sprintf("%s version %d by %s, request %d: ", a.Op, a.Version, a.Instance, a.Request)
	switch {
	case !a.Forwarded:
		return text + "not sent on"
	case !a.Known:
		return text + "no answer"
	case !a.wrote():
		return text + fmt.Sprintf("%d after %v", a.Status, a.Answered.Sub(a.Sent))
	}
	return text + fmt.Sprintf("%d %s as version %d, term %d seq_no %d, after %v", a.Status, a.Result, a.ResultVersion, a.PrimaryTerm, a.SeqNo, a.Answered.Sub(a.Sent))
}
