package daemon_test

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/outbox"
)

// poison is the type of the entities with whose documents every request fails as a whole.
const poison = "poison"

// trouble is what becomes of such a request on its way.
type trouble struct {
	name   string
	reason outbox.Reason
	meet   func(w http.ResponseWriter, req *http.Request)
}

func troubles() []trouble {
	page := func(status int) func(http.ResponseWriter, *http.Request) {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/html")
			w.WriteHeader(status)
			_, _ = io.WriteString(w, "<html>blocked on the way</html>")
		}
	}
	return []trouble{
		{"Forbidden", outbox.ReasonESRequest, page(http.StatusForbidden)},
		{"BadGateway", outbox.ReasonES5xx, page(http.StatusBadGateway)},
		{"Reset", outbox.ReasonESConnect, func(w http.ResponseWriter, _ *http.Request) {
			conn, _, err := http.NewResponseController(w).Hijack()
			if err != nil {
				panic(http.ErrAbortHandler)
			}
			if tcp, ok := conn.(*net.TCPConn); ok {
				_ = tcp.SetLinger(0)
			}
			_ = conn.Close()
		}},
		{"Timeout", outbox.ReasonESTimeout, func(_ http.ResponseWriter, req *http.Request) {
			<-req.Context().Done() // its client has given up
			panic(http.ErrAbortHandler)
		}},
		{"OtherProduct", outbox.ReasonESRequest, page(http.StatusOK)},
	}
}

// poisoned has every request that carries a poisoned document meet tr. The answer tells
// when the first one had met it; zero while none has.
func (f *front) poisoned(tr trouble) (first func() time.Time) {
	var mu sync.Mutex
	var at time.Time
	f.set(func(w http.ResponseWriter, req *http.Request, body []byte) bool {
		if !isBulk(req) || !bytes.Contains(body, []byte(`"`+poison+`:`)) {
			return false
		}
		defer func() {
			mu.Lock()
			defer mu.Unlock()
			if at.IsZero() {
				at = time.Now()
			}
		}()
		tr.meet(w, req)
		return true
	})
	return func() time.Time {
		mu.Lock()
		defer mu.Unlock()
		return at
	}
}

// contagion is a run with documents that spoil every request which carries them, beside
// a stream of good ones.
type contagion struct {
	trouble
	bad       int           // such documents, written at once
	perSecond int           // good events
	hold      time.Duration // how long they must stay undisturbed
	lag       float64       // seconds, in which 99 % of them must be done then, and all in three times that
	env       []string
}

const (
	// recovery is how long after the first fault the good events may be held up.
	recovery = 5 * time.Second
	// namedAtOnce is how many lines of a kind the log takes before it thins them out.
	namedAtOnce = 10
)

// run writes the bad documents into the stream and holds that the good events go on within
// recovery, and with little lag from then on, while the bad ones are tried again and again,
// less and less often, and everybody can see which they are.
func (c contagion) run(t testing.TB) {
	t.Helper()
	r := setup(t)
	r.record()
	f := newFront(t, r.elastic)
	first := f.poisoned(c.trouble)
	a := r.start("a", append([]string{"ELASTIC_URL=" + f.URL, "OUTBOX_BASE_BACKOFF_SECONDS=0.5", "OUTBOX_MAX_BACKOFF_SECONDS=30"}, c.env...)...)
	a.awaitReady(200, `"role": "leader"`)
	p := r.produceNow(c.perSecond, newKeys(2000))
	testenv.Eventually(t, func() bool { return r.counts()["done"] > 0 }, "a stream of events")

	bad := make([]change, c.bad)
	for i := range bad {
		bad[i] = change{outbox.Key{Type: poison, ID: outbox.UUID(uuid.New())}, 1, outbox.Upsert, "x"}
	}
	r.write(bad...)
	testenv.Eventually(t, func() bool { return !first().IsZero() }, "the first fault")
	<-time.After(time.Until(first().Add(recovery + c.hold)))
	good := p.stop()
	testenv.Eventually(t, func() bool { return r.counts()["done"] == good }, fmt.Sprintf("%d good events done", good))

	var lag, worst float64
	r.scan(`select percentile_disc(0.99) within group (order by late), max(late)
		from (select extract(epoch from processed_at - greatest(created_at, $1::timestamptz))::float8 as late
		      from search_outbox_events where entity_type <> $2) e`, []any{first().Add(recovery), poison}, &lag, &worst)
	if lag > c.lag || worst > 3*c.lag { // what else runs on the machine may hold up a few
		t.Errorf("from %v after the first fault on, 99 %% of the good events were done within %.2f s and all within %.2f s, want %.0f s and %.0f s",
			recovery, lag, worst, c.lag, 3*c.lag)
	}
	var ended, tries, most int
	r.scan(`select count(*) filter (where status in ('done', 'failed')), min(attempts), max(attempts)
		from search_outbox_events where entity_type = $1`, []any{poison}, &ended, &tries, &most)
	if limit := 9 + int(c.hold/(10*time.Second)); ended != 0 || tries < 1 || most > limit {
		t.Errorf("of the bad events %d have ended, and they were tried %d to %d times, want none, and 1 to %d", ended, tries, most, limit)
	}
	testenv.Eventually(t, func() bool {
		named := 0
		for _, b := range bad {
			if c.named(a, b.key) {
				named++
			}
		}
		return named >= min(c.bad, namedAtOnce/2)
	}, "warnings that name the bad ones")
	if got := a.metric("outbox_retry_scheduled_total", `reason="`+string(c.reason)+`"`); int(got) < c.bad {
		t.Errorf("%v retries for %s counted, want one for each of %d documents at least", got, c.reason, c.bad)
	}
	if got := a.metric("weft_isolated_entities", "search_index"); int(got) != c.bad {
		t.Errorf("%v entities shown as isolated, want %d", got, c.bad)
	}
	a.awaitReady(200, `"activity": "running"`)

	f.set(nil)
	r.exec("update search_outbox_events set next_retry_at = now() where status = 'pending' and entity_type = $1", poison)
	r.await(map[string]int{"done": good + c.bad})
	r.judge()
	t.Logf("%d good events, 99 %% within %.3f s, all within %.3f s; %d bad ones tried %d to %d times", good, lag, worst, c.bad, tries, most)
}

// named reports whether a warning names the entity and says why it is tried again.
func (c contagion) named(a *instance, key outbox.Key) bool {
	return slices.ContainsFunc(a.logs.with("entity_id", key.ID.String()), func(l map[string]any) bool {
		return l["level"] == "warn" && l["event"] == "projection.event" && l["result"] == "retry" && l["reason"] == string(c.reason) && l["event_id"] != nil
	})
}

// A document with which every request fails as a whole holds up no other, however many
// there are of them and however few events there are beside them.
func TestDocumentsThatSpoilRequestsHoldUpNobody(t *testing.T) {
	t.Parallel()
	mixtures := []contagion{{bad: 1, perSecond: 1}, {bad: 9, perSecond: testenv.Volume(150, 500)}, {bad: 100, perSecond: 1}}
	for i, tr := range troubles() {
		c := mixtures[i%len(mixtures)]
		t.Run(fmt.Sprintf("%s/%dBad/%dPerSecond", tr.name, c.bad, c.perSecond), func(t *testing.T) {
			t.Parallel()
			// A build that is held up leaves half of them waiting for 25 s and more, and a busy machine some for eight.
			c.trouble, c.hold, c.lag, c.env = tr, 5*time.Second, 15, []string{"WEFT_ES_TIMEOUT=2s"}
			c.run(t)
		})
	}
}

// BenchmarkDocumentsThatSpoilRequests is the same for longer, with every mixture, the
// default deadline of a request and a lag of a second: -bench SpoilRequests -benchtime 1x -timeout 2h.
func BenchmarkDocumentsThatSpoilRequests(b *testing.B) {
	for _, tr := range troubles() {
		for _, bad := range []int{1, 9, 100} {
			for _, perSecond := range []int{1, 500} {
				b.Run(fmt.Sprintf("%s/%dBad/%dPerSecond", tr.name, bad, perSecond), func(b *testing.B) {
					for range b.N {
						contagion{trouble: tr, bad: bad, perSecond: perSecond, hold: time.Minute, lag: 1}.run(b)
					}
				})
			}
		}
	}
}
