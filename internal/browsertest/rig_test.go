//go:build browser

package browsertest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/chromedp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/crypto/bcrypt"

	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/internal/testenv/proxy"
)

func TestMain(m *testing.M) { testenv.Main(m) }

const projection = "search_index_to_elastic"

// rig is a database, an index, and the processes that work on them. alice is an operator of
// their pages, bob is not.
type rig struct {
	t              *testing.T
	pool           *pgxpool.Pool
	env            []string
	elastic, index string
	toElastic      *proxy.Link // the way that the instances take
	browser        context.Context
}

func setup(t *testing.T) *rig {
	t.Helper()
	dsn := testenv.Database(t)
	r := &rig{t: t, elastic: testenv.ElasticURL(t), index: testenv.Index(t)}
	way, err := proxy.NewLink(strings.TrimPrefix(r.elastic, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = way.Close() })
	r.toElastic = way
	runner := testenv.As(t, dsn, testenv.Runner(t, dsn))
	r.pool = testenv.Pool(t, dsn)
	file := filepath.Join(t.TempDir(), "desk.yaml")
	text := "basic_auth_users:\n"
	for _, name := range []string{"alice", "bob"} {
		hash, err := bcrypt.GenerateFromPassword([]byte("of "+name), bcrypt.MinCost)
		if err != nil {
			t.Fatal(err)
		}
		text += "  " + name + ": " + string(hash) + "\n"
	}
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	r.env = append(os.Environ(), "DATABASE_URL="+runner, "ELASTIC_URL=http://"+way.Addr(), "ELASTIC_INDEX="+r.index, "WEFT_GROUP=books",
		"OUTBOX_METRICS_PORT=0", "WEFT_HTTP_HOST=127.0.0.1", "WEFT_LOG_FORMAT=json", "OUTBOX_POLL_INTERVAL_SECONDS=0.05",
		"WEFT_DESK_LISTEN=127.0.0.1:0", "WEFT_DESK_WEB_CONFIG="+file, "WEFT_DESK_ACTIONS=true", "WEFT_DESK_OPERATORS=alice")
	r.browser = launch(t)
	return r
}

// launch starts a browser that ends with the test.
func launch(t *testing.T) context.Context {
	t.Helper()
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath("chromium"), chromedp.WindowSize(1100, 800),
		chromedp.Flag("lang", "en-US"), chromedp.Flag("disable-dev-shm-usage", true))
	if os.Geteuid() == 0 {
		options = append(options, chromedp.NoSandbox)
	}
	ctx, end := chromedp.NewExecAllocator(context.Background(), options...)
	browser, cancel := chromedp.NewContext(ctx)
	t.Cleanup(func() { cancel(); end() })
	if err := chromedp.Run(browser); err != nil {
		t.Fatalf("chromium: %v", err)
	}
	return browser
}

// instance is one process.
type instance struct {
	*rig
	name, url string
	cmd       *exec.Cmd
	log       *log
}

// log keeps what a process says.
type log struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// start starts a process and waits for its page.
func (r *rig) start(name string) *instance {
	r.t.Helper()
	in := &instance{rig: r, name: name, log: &log{}}
	in.cmd = exec.Command(testenv.Program(r.t, "weft"), "run")
	in.cmd.Env, in.cmd.Stderr, in.cmd.Stdout = append(r.env, "WEFT_INSTANCE="+name), in.log, in.log
	if err := in.cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() {
		_ = in.cmd.Process.Signal(syscall.SIGTERM)
		_ = in.cmd.Wait()
		if r.t.Failed() {
			text := in.log.String()
			r.t.Logf("end of the log of %s:\n%s", name, text[max(0, len(text)-4000):])
		}
	})
	testenv.Eventually(r.t, func() bool {
		for line := range strings.Lines(in.log.String()) {
			var l struct{ Event, Address string }
			if json.Unmarshal([]byte(line), &l) == nil && l.Event == "desk.serving" {
				in.url = "http://" + l.Address
			}
		}
		return in.url != ""
	}, "the page of "+name)
	return in
}

// kill ends the process as the kernel does.
func (in *instance) kill() {
	in.t.Helper()
	if err := in.cmd.Process.Kill(); err != nil {
		in.t.Fatal(err)
	}
	_ = in.cmd.Wait()
}

func (r *rig) exec(sql string, args ...any) {
	r.t.Helper()
	if _, err := r.pool.Exec(context.Background(), sql, args...); err != nil {
		r.t.Fatalf("%s: %v", sql, err)
	}
}

func (r *rig) one(sql string, args ...any) (text string) {
	r.t.Helper()
	if err := r.pool.QueryRow(context.Background(), "select ("+sql+")::text", args...).Scan(&text); err != nil {
		r.t.Fatalf("%s: %v", sql, err)
	}
	return text
}

func (r *rig) await(what, sql, want string) {
	r.t.Helper()
	testenv.Eventually(r.t, func() bool { return r.one(sql) == want }, what)
}

// upsert writes a source row and its event, and returns the id of the event. A rank that
// Elasticsearch's float cannot hold makes a dead letter.
func (r *rig) upsert(entity string, version int64, rank float64) string {
	r.t.Helper()
	id := uuid.NewString()
	r.exec(`insert into search_index (entity_type, entity_id, text, snippet, rank_score, event_version) values ('book', $1, 'a text', 'a text', $2, $3)
		on conflict (entity_type, entity_id) do update set rank_score = excluded.rank_score, event_version = excluded.event_version`, entity, rank, version)
	r.exec(`insert into search_outbox_events (id, entity_type, entity_id, op, event_version) values ($1, 'book', $2, 'upsert', $3)`, id, entity, version)
	return id
}

// indexed reports whether Elasticsearch has the document of an entity.
func (r *rig) indexed(entity string) bool {
	r.t.Helper()
	req, err := http.NewRequestWithContext(context.Background(), http.MethodGet, r.elastic+"/"+r.index+"/_doc/book:"+entity, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	_ = resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}

// tab is a tab of the browser, with the login of one person.
type tab struct {
	t   *testing.T
	ctx context.Context
}

func (r *rig) tab(t *testing.T, user string) *tab {
	t.Helper()
	ctx, cancel := chromedp.NewContext(r.browser)
	t.Cleanup(cancel)
	b := &tab{t, ctx}
	if err := chromedp.Run(ctx); err != nil { // with no limit, which would end the tab
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(context.Background(), http.MethodGet, "http://localhost", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.SetBasicAuth(user, "of "+user)
	b.do(network.Enable(), network.SetExtraHTTPHeaders(network.Headers{"Authorization": req.Header.Get("Authorization")}))
	return b
}

// do runs steps in the tab.
func (b *tab) do(steps ...chromedp.Action) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, time.Minute) // a page takes milliseconds on an idle machine
	defer cancel()
	if err := chromedp.Run(ctx, steps...); err != nil {
		var text string
		ctx, cancel := context.WithTimeout(b.ctx, 5*time.Second)
		defer cancel()
		_ = chromedp.Run(ctx, chromedp.Evaluate("document.body.innerText", &text))
		b.t.Fatalf("%v; the page shows:\n%s", err, text)
	}
}

// open goes to a page and waits until it is there.
func (b *tab) open(url string) {
	b.t.Helper()
	b.do(chromedp.Navigate(url), chromedp.WaitReady("#main"))
}

// loaded waits until the page has all that it names, such as its script.
func (b *tab) loaded() {
	b.t.Helper()
	testenv.Eventually(b.t, func() bool { return eval[string](b, "document.readyState") == "complete" }, "the page to be complete")
}

// eval returns the value of an expression.
func eval[T any](b *tab, expression string) (value T) {
	b.t.Helper()
	b.do(chromedp.Evaluate(expression, &value))
	return value
}

// awaits waits until an element's text holds words.
func (b *tab) awaits(selector string, words string) {
	b.t.Helper()
	expression := fmt.Sprintf("(document.querySelector(%q) || {textContent: ''}).textContent.includes(%q)", selector, words)
	testenv.Eventually(b.t, func() bool {
		var there bool
		ctx, cancel := context.WithTimeout(b.ctx, 10*time.Second)
		defer cancel()
		_ = chromedp.Run(ctx, chromedp.Evaluate(expression, &there)) // a page that is being left has no answer
		return there
	}, selector+" to say "+words)
}

// confirm gives the reason of a preview, and waits for the result.
func (b *tab) confirm(why string, words ...string) {
	b.t.Helper()
	b.do(chromedp.SendKeys(`input[name="why"]`, why), chromedp.Click("button.act"), chromedp.WaitVisible(`section[aria-label^="Action"]`))
	b.awaits("#main section [role=status]", "done")
	for _, w := range words {
		b.awaits("#main section", w)
	}
}
