//go:build browser

package browsertest

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/google/uuid"

	"github.com/samuelhu324-dev/weft/internal/testenv"
)

// nasty is an error that would act on a page or a terminal if anything did not escape it.
const nasty = `<img src=x onerror="window.pwned=1"><script>window.pwned=1</script> \u202Egnp.exe \x1b[31mred`

// TestPage is one day of an operator. Its steps build on each other.
func TestPage(t *testing.T) {
	t.Parallel()
	r := setup(t)
	a := r.start("a")
	r.await("a leads", "select coalesce((select instance from weft_leader where released_at is null), '')", "a")
	b := r.start("b")
	r.await("b is a standby", "select count(*) from weft_instance where desk_url is not null", "2")
	good, bad, worse := uuid.NewString(), uuid.NewString(), uuid.NewString()
	r.upsert(good, 1, 1)
	badID, worseID := r.upsert(bad, 2, 1e300), r.upsert(worse, 3, 1e300)
	r.await("dead letters", "select count(*) from search_outbox_events where status = 'failed'", "2")
	alice := r.tab(t, "alice")

	for _, step := range []struct {
		name string
		run  func(t *testing.T)
	}{
		{"EveryViewIsReadableByEverybody", func(t *testing.T) { r.views(t, a, badID) }},
		{"DeadLetterIsReplayedFromTheEvent", func(t *testing.T) {
			r.exec("update search_index set rank_score = 1 where entity_id = $1", bad)
			alice.open(a.url + "/event?id=" + badID)
			alice.do(chromedp.Click(`button[value="replay"]`, chromedp.NodeVisible), chromedp.WaitVisible("button.act"))
			alice.confirm("row fixed", "1 of 1 replayed: 1 done, 0 failed again")
			if got := r.one("select status || last_replayed_by from search_outbox_events where id = $1", badID); got != "donealice" || !r.indexed(bad) {
				t.Errorf("the event is %s, indexed %v; want done by alice in both stores", got, r.indexed(bad))
			}
		}},
		{"SelectionIsDiscardedByKeyboardAlone", func(t *testing.T) {
			alice.open(a.url + "/failed")
			alice.press(t, `document.activeElement.classList.contains("skip")`)
			alice.do(chromedp.KeyEvent(kb.Enter))
			alice.press(t, `document.activeElement.value === "discard"`)
			alice.press(t, `document.activeElement.name === "id"`)
			alice.do(chromedp.KeyEvent(" "))
			if !eval[bool](alice, `document.activeElement.checked`) {
				t.Fatal("the space bar selects nothing")
			}
			for range 30 {
				if eval[bool](alice, `document.activeElement.value === "discard"`) {
					break
				}
				alice.do(chromedp.KeyEvent(kb.Tab, chromedp.KeyModifiers(8))) // shift
			}
			alice.do(chromedp.KeyEvent(kb.Enter), chromedp.WaitVisible("button.act"))
			alice.press(t, `document.activeElement.name === "why"`)
			alice.do(chromedp.KeyEvent("test data"), chromedp.KeyEvent(kb.Enter), chromedp.WaitVisible(`section[aria-label^="Action"]`))
			alice.awaits("#main section", "1 of 1 discarded")
			if got := r.one("select status || discarded_by from search_outbox_events where id = $1", worseID); got != "failedalice" || r.indexed(worse) {
				t.Errorf("the event is %s, indexed %v; want it discarded", got, r.indexed(worse))
			}
		}},
		{"PausedProjectionWaitsUntilItIsResumed", func(t *testing.T) { r.pauses(t, alice, a) }},
		{"OutageIsSeenUntilItsEnd", func(t *testing.T) { r.outage(t, alice, a) }},
		{"LogLevelChanges", func(t *testing.T) {
			alice.open(a.url + "/settings")
			alice.do(chromedp.SetValue(`select[name="level"]`, "debug"), chromedp.Click("form.filter button"), chromedp.WaitVisible("button.act"))
			alice.confirm("a look", "the level is debug")
			alice.open(a.url + "/settings")
			alice.awaits("#main", "now: debug")
		}},
		{"ViewerIsOfferedAndGrantedNothing", func(t *testing.T) { r.viewer(t, a) }},
		{"OpenPageShowsTheHandOver", func(t *testing.T) {
			watching := r.tab(t, "bob")
			watching.open(a.url + "/")
			watching.awaits("#election .big", "a leads since")
			alice.open(a.url + "/")
			alice.do(chromedp.Click(`a[href="/act?action=resign"]`), chromedp.WaitVisible("button.act"))
			alice.confirm("kernel update", "b leads in epoch")
			watching.awaits("#election .big", "b leads since")
			watching.awaits("#election", "it is a standby since")
		}},
		{"OpenPagesFollowAKilledLeader", func(t *testing.T) { r.takeover(t, a, b) }},
		{"HundredThousandDeadLetters", func(t *testing.T) { r.many(t, alice, a) }},
	} {
		if !t.Run(step.name, func(t *testing.T) { alice.t = t; step.run(t) }) {
			return
		}
	}
}

// press moves the focus with the tab key until it is where it should be.
func (b *tab) press(t *testing.T, until string) {
	t.Helper()
	for range 40 {
		b.do(chromedp.KeyEvent(kb.Tab))
		if eval[bool](b, until) {
			return
		}
	}
	t.Fatalf("the tab key never leads to %s", until)
}

// views opens every page at two widths in both colours and has axe look at it.
func (r *rig) views(t *testing.T, in *instance, id string) {
	r.exec("update search_outbox_events set error = $2 where id = $1", id, strings.NewReplacer(`\u202E`, "\u202e", `\x1b`, "\x1b").Replace(nasty))
	bob, alice := r.tab(t, "bob"), r.tab(t, "alice")
	for path, words := range map[string]string{
		"/": "a leads since", "/failed": "2 dead letters", "/event?id=" + id: "rank_score", "/audit": "Outcome", "/settings": "desk.operators", "/result": "None.",
		"/act?action=replay_all": "Replay?", "/act?action=pause": "Pause?",
	} {
		tab := bob
		if strings.HasPrefix(path, "/act") || path == "/failed" {
			tab = alice
		}
		if strings.HasPrefix(path, "/event") {
			words = "gnp.exe"
		}
		for _, dark := range []string{"light", "dark"} {
			for _, width := range []int64{1100, 320} {
				tab.do(chromedp.EmulateViewport(width, 800), emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: dark}}))
				tab.open(in.url + path)
				tab.awaits("#main", words)
				if got := eval[int64](tab, "document.documentElement.scrollWidth"); got > width {
					t.Errorf("%s at %d px is %d px wide", path, width, got)
				}
				accessible(t, tab, path+" "+dark+" at "+strconv.FormatInt(width, 10)+" px")
			}
		}
		if eval[bool](tab, `window.pwned === 1 || /[\u202e\u001b]/.test(document.body.innerText)`) {
			t.Errorf("%s: the text of an error acts on the page", path)
		}
	}
	alice.do(chromedp.EmulateViewport(1100, 800))
	if size := eval[float64](bob, `performance.getEntriesByType("resource").concat(performance.getEntriesByType("navigation")).reduce((n, e) => n + e.decodedBodySize, 0)`); size > 150_000 || size == 0 {
		t.Errorf("a page and what it loads are %.0f bytes, want under 150 kB", size)
	}
	r.exec("update search_outbox_events set error = 'mapper_parsing_exception: field [rank_score] is out of range' where id = $1", id)
	r.screenshots(t, in)
}

// pauses pauses the projection, writes an event, and resumes it.
func (r *rig) pauses(t *testing.T, alice *tab, in *instance) {
	alice.open(in.url + "/")
	alice.do(chromedp.Click(`a[href="/act?action=pause&projection=`+projection+`"]`), chromedp.WaitVisible("button.act"))
	alice.confirm("reindexing", "paused: the leader leases nothing more")
	alice.open(in.url + "/")
	alice.awaits("#state-"+projection, "Paused by alice")
	alice.awaits("#state-"+projection+" .phase", "paused: somebody has stopped it")
	entity := uuid.NewString()
	id := r.upsert(entity, 1, 1)
	alice.awaits("#state-"+projection+" .counts", "Lag1")
	if got := r.one("select status from search_outbox_events where id = $1", id); got != "pending" || r.indexed(entity) {
		t.Errorf("paused: the event is %s, indexed %v", got, r.indexed(entity))
	}
	alice.do(chromedp.Click(`a[href="/act?action=resume&projection=`+projection+`"]`), chromedp.WaitVisible("button.act"))
	alice.confirm("reindexed", "resumed")
	r.await("the event is done after the pause", "select status from search_outbox_events where id = '"+id+"'", "done")
	if !r.indexed(entity) {
		t.Error("the event is done, and its document is missing")
	}
}

// outage follows an outage of Elasticsearch on an open page: its cause, what waits, the runbook,
// and its end.
func (r *rig) outage(t *testing.T, alice *tab, in *instance) {
	alice.open(in.url + "/")
	alice.awaits("#state-"+projection+" .phase", "running")
	if err := r.toElastic.Cut(); err != nil {
		t.Fatal(err)
	}
	entity := uuid.NewString()
	id := r.upsert(entity, 1, 1)
	alice.awaits("#state-"+projection+" .phase", "its destination takes no writes")
	alice.awaits("#state-"+projection+" .counts", "Lag1")
	alice.awaits("#election .alarm", "elasticsearch is unusable since")
	if href := eval[string](alice, `document.querySelector("#state-`+projection+` .phase a").href`); !strings.HasSuffix(href, "elasticsearch-down.md") {
		t.Errorf("the page leads to %s", href)
	}
	if err := r.toElastic.Heal(); err != nil {
		t.Fatal(err)
	}
	alice.awaits("#state-"+projection+" .phase", "running")
	alice.awaits("#state-"+projection+" .counts", "Lag0")
	if got := r.one("select status from search_outbox_events where id = $1", id); got != "done" || !r.indexed(entity) {
		t.Errorf("after the outage: the event is %s, indexed %v", got, r.indexed(entity))
	}
	testenv.Eventually(t, func() bool { return eval[int](alice, `document.querySelectorAll("#election .alarm").length`) == 0 }, "the end of the alarms")
}

// viewer holds that bob finds no action, and that a form in his name is refused.
func (r *rig) viewer(t *testing.T, in *instance) {
	bob := r.tab(t, "bob")
	for _, path := range []string{"/", "/failed", "/settings"} {
		bob.open(in.url + path)
		if n := eval[int](bob, `document.querySelectorAll("[action='/act'], [href^='/act']").length`); n != 0 {
			t.Errorf("%s offers bob %d actions", path, n)
		}
	}
	before := r.one("select count(*) from weft_audit")
	for _, body := range []string{"action=replay_all", "action=discard_all", "action=replay&id=1", "action=discard&id=1", "action=pause", "action=resume", "action=resign", "action=log_level&level=debug"} {
		status := eval[int](bob, `(() => { const x = new XMLHttpRequest(); x.open("POST", "/act", false); x.setRequestHeader("Content-Type", "application/x-www-form-urlencoded"); x.send("why=x&state=running&`+body+`"); return x.status })()`)
		if status != 403 {
			t.Errorf("%s posted by bob: got %d, want 403", body, status)
		}
	}
	if after := r.one("select count(*) from weft_audit"); after != before {
		t.Errorf("the audit has %s entries, want %s", after, before)
	}
}

// takeover kills the leader, b, while its page and that of the standby are open.
func (r *rig) takeover(t *testing.T, a, b *instance) {
	ofLeader, ofStandby := r.tab(t, "alice"), r.tab(t, "alice")
	ofLeader.open(b.url + "/")
	ofLeader.awaits("#election", "b, is the leader")
	ofStandby.open(a.url + "/")
	ofStandby.awaits("#election", "it is a standby since")
	ofStandby.awaits("#election", "b leads since")
	r.exec(`insert into search_outbox_events (id, entity_type, entity_id, op, event_version, status, attempts, updated_at)
		select gen_random_uuid(), 'gone', gen_random_uuid(), 'delete', n, 'failed', 1, now() - interval '1 minute' from generate_series(1, 90000) n`) // for minutes
	acting := r.tab(t, "alice")
	acting.open(b.url + "/failed?entity=gone")
	acting.do(chromedp.Click(`button[value="replay_all"]`), chromedp.WaitVisible("button.act"), chromedp.SendKeys(`input[name="why"]`, "a try"), chromedp.Click("button.act"))
	acting.awaits("#main section", "running")
	acting.loaded() // a page without its script says nothing of a connection
	b.kill()
	acting.awaits("#connection", "An action ends with its instance")
	r.exec("delete from search_outbox_events where entity_type = 'gone' and status = 'failed'")
	r.await("a leads", "select instance from weft_leader", "a")
	led := time.Now()
	ofStandby.awaits("#election .big", "a leads since")
	if took := time.Since(led); took > 2*time.Second {
		t.Errorf("the page of the standby showed the new leader after %v, want 2s at most", took)
	}
	ofStandby.awaits("#election", "a, is the leader")
	ofStandby.awaits("#terms", "it vanished; its successor recorded the end")
	ofLeader.awaits("#connection", "This page is disconnected from its instance since")
	link := `#connection a[href="` + a.url + `/"]`
	ofLeader.do(chromedp.Click(link, chromedp.NodeVisible), chromedp.WaitReady("#election"))
	ofLeader.awaits("#election", "a, is the leader")
}

// many discards as many dead letters as a bad day leaves.
func (r *rig) many(t *testing.T, alice *tab, in *instance) {
	const n = 100_000
	r.exec(`insert into search_outbox_events (id, entity_type, entity_id, op, event_version, status, attempts, error_reason, error, updated_at)
		select gen_random_uuid(), 'tag', gen_random_uuid(), 'upsert', n, 'failed', 1, 'es_4xx', 'field ' || n || ' is out of range', now() - interval '1 minute' from generate_series(1, $1) n`, n)
	r.exec("analyze search_outbox_events")
	begin := time.Now()
	alice.open(in.url + "/failed")
	alice.awaits("#main", "10000 or more dead letters")
	alice.do(chromedp.SendKeys(`input[name="text"]`, "field 99999 "), chromedp.Submit(`form[action="/failed"]`))
	alice.awaits("#main", "1 dead letter")
	t.Logf("list and filter took %v", time.Since(begin))
	alice.open(in.url + "/failed?reason=es_4xx&entity=tag")
	alice.do(chromedp.Click(`button[value="discard_all"]`), chromedp.WaitVisible("button.act"))
	alice.awaits("#main", strconv.Itoa(n)+" dead letters of "+projection)
	begin = time.Now()
	alice.do(chromedp.SendKeys(`input[name="why"]`, "test data"), chromedp.Click("button.act"), chromedp.WaitVisible(`section[aria-label^="Action"]`))
	testenv.Eventually(t, func() bool {
		return eval[bool](alice, `document.querySelector("#main").textContent.includes("100000 of 100000 discarded")`)
	}, "the discard of all")
	t.Logf("the discard took %v", time.Since(begin))
	if got := r.one("select count(*) from search_outbox_events where discarded_by = 'alice' and entity_type = 'tag'"); got != strconv.Itoa(n) {
		t.Errorf("%s are discarded, want %d", got, n)
	}
}
