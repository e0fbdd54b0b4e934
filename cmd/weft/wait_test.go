package main

import (
	"cmp"
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/samuelhu324-dev/weft/internal/testenv"
)

// A wait that is interrupted says what to do.
func TestWaitIsInterrupted(t *testing.T) {
	t.Parallel()
	m := newMorgue(t)
	m.fill()
	m.exec(`update search_outbox_events set status = 'pending' where event_version = 2`)
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	var out, errOut buffer
	a := &app{environ: m.env, stdin: strings.NewReader(""), stdout: &out, stderr: &errOut}
	code := make(chan int, 1)
	go func() { code <- a.execute(ctx, []string{"wait", event(2), "--timeout=10m"}) }()
	testenv.Eventually(t, func() bool {
		var n int
		err := m.pool.QueryRow(t.Context(), "select count(*) from pg_stat_activity where application_name = 'weft/wait' and datname = current_database()").Scan(&n)
		return err == nil && n > 0
	}, "the command is connected")
	interrupt()
	if got := <-code; got != exitTryAgain || !strings.Contains(errOut.String(), "run the command again") {
		t.Errorf("got code %d, %q, want %d", got, errOut.String(), exitTryAgain)
	}
}

func TestWait(t *testing.T) {
	t.Parallel()
	m := newMorgue(t)
	m.fill()
	url := strings.TrimPrefix(m.env[0], "DATABASE_URL=")
	env := []string{"DATABASE_URL=" + testenv.As(t, url, testenv.Runner(t, url))}
	m.exec(`update search_outbox_events set status = 'done' where event_version = 1`)
	m.exec(`update search_outbox_events set status = 'pending' where event_version in (2, 3, 5)`)
	for name, tc := range map[string]struct {
		env    []string
		id     string
		code   int
		status string
	}{
		"Done":             {nil, event(1), exitOK, "done"},
		"Failed":           {nil, event(4), exitBad, "failed"},
		"Pending":          {nil, event(2), exitInconclusive, "pending"},
		"OfTheOtherTable":  {nil, event(101), exitBad, "failed"},
		"Nowhere":          {nil, event(999), exitInconclusive, "unknown"},
		"GoneFromTheTable": {[]string{"OUTBOX_FINISHED=delete"}, event(999), exitOK, "gone"},
		"PendingAndLeaves": {[]string{"OUTBOX_FINISHED=delete"}, event(2), exitInconclusive, "pending"},
	} {
		if r := weft(t, append(env, tc.env...), "wait", "4711"); r.code != exitUsage || !strings.Contains(r.errOut, "have ids of another type") {
			t.Errorf("%s: the id of another kind of table: got %+v", name, r)
		}
		r := weft(t, append(env, tc.env...), "wait", tc.id, "--timeout=50ms", "--json")
		var out awaited
		if err := json.Unmarshal([]byte(r.out), &out); err != nil || r.code != tc.code || out.Status != tc.status || out.ID != tc.id {
			t.Errorf("%s: got %+v, %v, want %q and code %d", name, r, err, tc.status, tc.code)
		}
	}

	// It returns when the event is settled, not at the end of its time; and one that leaves the table is done.
	for _, tc := range []struct{ id, change, want string }{
		{event(3), "update search_outbox_events set status = 'done' where id = $1", "done after "},
		{event(5), "delete from search_outbox_events where id = $1", "no longer in the table"},
	} {
		const waiting = ` from pg_stat_activity where application_name = 'weft/wait' and datname = current_database()`
		testenv.Eventually(t, func() bool { return m.one(`select count(*)::text`+waiting) == "0" }, "the sessions of the commands before to end")
		ended := make(chan result, 1)
		go func() { ended <- weft(t, env, "wait", tc.id, "--timeout=1h") }()
		first := ""
		testenv.Eventually(t, func() bool { // it has looked: the first time, the server may only know the statement
			at := m.one(`select coalesce(max(query_start)::text, '')` + waiting + ` and state = 'idle' and query like 'select o.id, %'`)
			first = cmp.Or(first, at)
			return at > first
		}, "a look at "+tc.id)
		m.exec(tc.change, tc.id)
		if r := <-ended; r.code != 0 || !strings.Contains(r.out, tc.want) {
			t.Errorf("%s: got %+v, want %q", tc.change, r, tc.want)
		}
	}
	for _, args := range [][]string{nil, {"x"}, {"4711"}, {event(1), event(2)}, {event(1), "--timeout=-1s"}} {
		if r := weft(t, env, append([]string{"wait"}, args...)...); r.code != exitUsage || r.out != "" {
			t.Errorf("%v: got %+v, want code %d", args, r, exitUsage)
		}
	}
}
