package main

import (
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samuelhu324-dev/weft/internal/testenv"
)

var block = regexp.MustCompile("(?ms)^```(\\w+) ?([\\w.]*)\n(.*?)^```$")

var word = regexp.MustCompile(`'[^']*'|[^\s']+`)

// page runs the blocks of a document. Its index gets a name of its own, because other tests
// use the server.
type page struct {
	t     *testing.T
	pool  *pgxpool.Pool
	dir   string // of its files
	index string
	env   map[string]string
	last  func() string // what the last command shows
	up    []running
}

// write puts a file of the page into its directory.
func (p *page) write(name, text string) {
	p.t.Helper()
	text = strings.ReplaceAll(text, "{name: products,", "{name: "+p.index+",")
	if err := os.WriteFile(filepath.Join(p.dir, name), []byte(text), 0o600); err != nil {
		p.t.Fatal(err)
	}
}

func (p *page) environ() (env []string) {
	for k, v := range p.env {
		env = append(env, k+"="+v)
	}
	return env
}

// run runs the blocks of a text, with the servers of the tests, and counts them by kind.
func (p *page) run(text string) map[string]int {
	p.t.Helper()
	defer p.stop()
	seen := map[string]int{}
	for _, m := range block.FindAllStringSubmatch(text, -1) {
		kind, name, body := m[1], m[2], m[3]
		seen[kind]++
		switch kind {
		case "sql":
			p.exec(body)
		case "yaml", "json":
			p.write(name, body)
		case "sh":
			for line := range strings.Lines(body) {
				p.command(strings.TrimSpace(line))
			}
		case "output":
			p.expect(strings.TrimSpace(body))
		default:
			p.t.Errorf("a block of %q, which no test runs", kind)
		}
	}
	return seen
}

func openPage(t *testing.T) *page {
	t.Helper()
	dsn := testenv.Database(t)
	return &page{
		t: t, pool: testenv.Pool(t, dsn), dir: t.TempDir(), index: testenv.Index(t),
		env: map[string]string{"OUTBOX_METRICS_PORT": "0", "WEFT_GROUP": "page", "PAGE_DATABASE": dsn, "WEFT_LEADER_TRUST": "30s", "WEFT_LEADER_IDLE_SESSION": "1m"},
	}
}

// TestProjectionsPage holds that docs/projections.md leads from a table to a search result.
func TestProjectionsPage(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/projections.md")
	if err != nil {
		t.Fatal(err)
	}
	p := openPage(t)
	if seen := p.run(string(text)); seen["sh"] < 5 || seen["sql"] < 2 || seen["output"] < 2 || seen["yaml"] != 1 || seen["json"] != 1 {
		t.Errorf("blocks: %v", seen)
	}
	p.exec("insert into shop.category values (1, 'light'); insert into shop.product_category values (8, 1); update shop.category set name = 'lamps'")
	p.exec("update shop.visit set at = '2026-06-01'; delete from shop.visit_2026")
	p.exec("insert into shop.visit values (2, '2026-05-01'), (2, '2026-05-02'); delete from shop.visit where at = '2026-05-02'")
	for table, want := range map[string]int{
		"product_outbox_events where entity_id = 8":                  1,
		"visit_outbox_events where entity_id = 1":                    5, // two of them of the partition that came and went
		"visit_outbox_events where entity_id = 1 and op = 'delete'":  1,
		"visit_outbox_events where entity_id = 2 and op <> 'delete'": 5, // one of them after a row that is not the last one
	} {
		var got int
		if err := p.pool.QueryRow(t.Context(), "select count(*) from "+table).Scan(&got); err != nil || got != want {
			t.Errorf("%s: got %d events and %v, want %d", table, got, err, want)
		}
	}
}

// TestShopExample holds that the README of examples/shop leads to what it shows, with the
// files beside it.
func TestShopExample(t *testing.T) {
	t.Parallel()
	const dir = "../../examples/shop"
	p := openPage(t)
	files, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	readme := ""
	for _, f := range files {
		text, err := os.ReadFile(filepath.Join(dir, f.Name()))
		if err != nil {
			t.Fatal(err)
		}
		if p.write(f.Name(), string(text)); f.Name() == "README.md" {
			readme = string(text)
		}
	}
	// What compose.yaml sets.
	p.command("export DATABASE_URL=")
	p.command("export ELASTIC_URL=")
	p.command("export WEFT_CONFIG=weft.yaml")
	if seen := p.run(readme); seen["sh"] < 5 || seen["output"] != 4 {
		t.Errorf("blocks: %v", seen)
	}
}

func (p *page) command(line string) {
	p.t.Helper()
	// With Compose, a command of weft is its own container's, and that of psql the server's.
	line = strings.TrimPrefix(strings.TrimPrefix(line, "docker compose run --rm "), "docker compose exec postgres ")
	fields := word.FindAllString(line, -1)
	switch {
	case line == "docker compose up --detach --wait postgres elasticsearch":
	case line == "docker compose up --detach weft":
		p.up = append(p.up, start(p.t, runDaemon, p.environ()...), start(p.t, runDaemon, p.environ()...))
	case fields[0] == "psql":
		for _, f := range fields {
			if name, ok := strings.CutPrefix(f, "--file=/shop/"); ok {
				p.exec(p.file(name))
			}
		}
	case fields[0] == "export":
		name, value, _ := strings.Cut(fields[1], "=")
		switch name {
		case "DATABASE_URL":
			value = p.env["PAGE_DATABASE"]
			delete(p.env, "PAGE_DATABASE")
		case "ELASTIC_URL":
			value = testenv.ElasticURL(p.t)
		case "WEFT_CONFIG":
			value = filepath.Join(p.dir, value)
		}
		p.env[name] = value
	case line == "weft run &":
		p.up = append(p.up, start(p.t, runDaemon, p.environ()...))
	case fields[0] == "weft":
		r := weft(p.t, p.environ(), fields[1:]...)
		if r.code != 0 {
			p.t.Fatalf("%s: %+v", line, r)
		}
		p.last = func() string { return r.out }
	case fields[0] == "curl":
		p.last = func() string { return p.curl(fields[1:]) }
	default:
		p.t.Fatalf("a command that no test runs: %s", line)
	}
}

// expect waits until the last command shows what the page says.
func (p *page) expect(want string) {
	p.t.Helper()
	var got string
	defer func() {
		if got != want {
			p.t.Errorf("got %s", got)
		}
	}()
	testenv.Eventually(p.t, func() bool { got = strings.TrimSpace(p.last()); return got == want }, "the output of the page: "+want)
}

// curl sends the request of a command line: a search, with the body of a file.
func (p *page) curl(args []string) string {
	p.t.Helper()
	method, url, body := http.MethodGet, "", ""
	for _, arg := range args {
		arg = strings.Trim(arg, "'")
		if name, ok := strings.CutPrefix(arg, "@"); ok {
			method, body = http.MethodPost, p.file(name)
		}
		if query, ok := strings.CutPrefix(arg, "localhost:9200/products/"); ok {
			url = p.env["ELASTIC_URL"] + "/" + p.index + "/" + query
		}
	}
	req, err := http.NewRequestWithContext(p.t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		p.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		p.t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		p.t.Fatal(err)
	}
	return string(text)
}

func (p *page) exec(sql string) {
	p.t.Helper()
	if _, err := p.pool.Exec(p.t.Context(), sql); err != nil {
		p.t.Fatalf("%s: %v", sql, err)
	}
}

func (p *page) file(name string) string {
	p.t.Helper()
	text, err := os.ReadFile(filepath.Join(p.dir, name))
	if err != nil {
		p.t.Fatal(err)
	}
	return string(text)
}

func (p *page) stop() {
	for _, r := range p.up {
		r.signals <- syscall.SIGTERM
		if code := <-r.code; code != 0 || p.t.Failed() {
			p.t.Errorf("weft run ended with %d: %s", code, r.errOut)
		}
	}
}
