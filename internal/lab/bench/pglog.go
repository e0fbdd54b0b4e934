package bench

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/samuelhu324-dev/weft/internal/lab/rig"
	"github.com/samuelhu324-dev/weft/internal/lab/verdict"
)

// logPrefix: time, transaction, application. Statements of one round trip are one
// transaction: pgx sends a batch with one Sync at its end.
const logPrefix = "%m|%v|%a|"

const logTime = "2006-01-02 15:04:05.000 MST"

// statement is a logged piece of work: the parse, plan or execution of a statement.
type statement struct {
	at          time.Time // its end, database clock
	transaction string
	application string
	ms          float64
	text        string
}

// statementLog sums up what a worker's sessions did.
type statementLog struct {
	roundTrips int
	claims     verdict.Distribution // milliseconds, one per lease and one per list
	lists      verdict.Distribution // those of lists
	first      time.Time            // when the first lease began
	last       time.Time            // when the last settle ended
}

// trip is what one round trip did.
type trip struct {
	claims, lists, settles bool
	ms                     float64
	end                    time.Time
}

func (t *trip) start() time.Time { return t.end.Add(-time.Duration(t.ms * float64(time.Millisecond))) }

// readLog reads what was logged behind offset between two moments of the database's
// clock; a zero time is no bound.
func readLog(file string, offset int64, from, to time.Time) (statementLog, error) {
	f, err := os.Open(file)
	if err != nil {
		return statementLog{}, fmt.Errorf("log of PostgreSQL: %w", err)
	}
	defer f.Close()
	if _, err := f.Seek(offset, io.SeekStart); err != nil {
		return statementLog{}, fmt.Errorf("log of PostgreSQL: %w", err)
	}
	from = from.Truncate(time.Millisecond) // the precision of the log
	trips := map[string]*trip{}
	var order []*trip
	err = parseLog(f, func(s statement) {
		if s.at.Before(from) || !to.IsZero() && s.at.After(to) || !strings.HasSuffix(s.application, "/work") {
			return
		}
		t := trips[s.transaction]
		if t == nil {
			t = &trip{}
			trips[s.transaction] = t
			order = append(order, t)
		}
		t.ms += s.ms
		t.end = s.at
		t.claims = t.claims || isLease(s.text)
		t.lists = t.lists || isList(s.text)
		t.settles = t.settles || isSettle(s.text)
	})
	out := statementLog{roundTrips: len(order)}
	for _, t := range order {
		if t.claims || t.lists {
			out.claims = append(out.claims, t.ms)
		}
		if t.lists {
			out.lists = append(out.lists, t.ms)
		}
		if t.claims && (out.first.IsZero() || t.start().Before(out.first)) {
			out.first = t.start()
		}
		if t.settles {
			out.last = t.end
		}
	}
	return out, err
}

// isLease recognises what takes events: a lease, or a claim of a build before leases.
func isLease(text string) bool {
	return strings.Contains(text, "insert into weft_lease") || strings.Contains(text, "set status = 'processing'")
}

// isList recognises what only shows which events may be taken. A look back at the head of the index is
// none: no lease waits for it.
func isList(text string) bool {
	return strings.Contains(text, "as suspect") ||
		strings.HasPrefix(strings.TrimSpace(text), "select id") && strings.Contains(text, "next_retry_at is null")
}

// isSettle recognises what ends a lease.
func isSettle(text string) bool { return strings.Contains(text, "delete from weft_lease") }

// parseLog calls visit for each line that says how long a statement took, with the lines
// that go on with its text.
func parseLog(r io.Reader, visit func(statement)) error {
	var (
		open    statement
		pending bool
		lines   = bufio.NewScanner(r)
	)
	lines.Buffer(make([]byte, 1<<16), 64<<20)
	for lines.Scan() {
		line := lines.Text()
		if more, ok := strings.CutPrefix(line, "\t"); ok {
			open.text += "\n" + more
			continue
		}
		if pending {
			visit(open)
		}
		open, pending = parseLine(line)
	}
	if pending {
		visit(open)
	}
	return rig.Wrap("log of PostgreSQL", lines.Err())
}

// timed is `TIME|TRANSACTION|APPLICATION|LOG:  duration: MS ms  execute NAME: TEXT`.
var timed = regexp.MustCompile(`^([^|]+)\|([^|]*)\|([^|]*)\|LOG:  duration: ([0-9.]+) ms  [^:]*: (.*)$`)

func parseLine(line string) (s statement, ok bool) {
	m := timed.FindStringSubmatch(line)
	if m == nil {
		return s, false
	}
	at, notTime := time.Parse(logTime, m[1])
	ms, notNumber := strconv.ParseFloat(m[4], 64)
	return statement{at: at, transaction: m[2], application: m[3], ms: ms, text: strings.TrimSpace(m[5])}, notTime == nil && notNumber == nil
}
