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
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samuelhu324-dev/weft/internal/testenv"
)

var block = regexp.MustCompile("(?ms)^```(\\w+) ?([\\w.]*)\n(.*?)^```$")

// page runs the blocks of docs/projections.md. Its index gets a name of its own, because
// other tests use the server.
type page struct {
	t     *testing.T
	pool  *pgxpool.Pool
	dir   string
	index string
	env   map[string]string
	last  func() string // what the last command shows
	up    *running
}

func (p *page) environ() (env []string) {
	for k, v := range p.env {
		env = append(env, k+"="+v)
	}
	return env
}

// TestProjectionsPage holds that docs/projections.md leads from a table to a search result.
func TestProjectionsPage(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/projections.md")
	if err != nil {
		t.Fatal(err)
	}
	dsn := testenv.Database(t)
	p := &page{t: t, pool: testenv.Pool(t, dsn), dir: t.TempDir(), index: testenv.Index(t)}
	p.env = map[string]string{"OUTBOX_METRICS_PORT": "0", "WEFT_GROUP": "page", "PAGE_DATABASE": dsn}
	defer p.stop()
	seen := map[string]int{}
	for _, m := range block.FindAllStringSubmatch(string(text), -1) {
		kind, name, body := m[1], m[2], strings.ReplaceAll(m[3], "{name: products,", "{name: "+p.index+",")
		seen[kind]++
		switch kind {
		case "sql":
			if _, err := p.pool.Exec(t.Context(), body); err != nil {
				t.Fatalf("%s: %v", body, err)
			}
		case "yaml", "json":
			if err := os.WriteFile(filepath.Join(p.dir, name), []byte(body), 0o600); err != nil {
				t.Fatal(err)
			}
		case "sh":
			for line := range strings.Lines(body) {
				p.command(strings.TrimSpace(line))
			}
		case "output":
			p.expect(strings.TrimSpace(body))
		default:
			t.Errorf("a block of %q, which no test runs", kind)
		}
	}
	if seen["sh"] < 5 || seen["sql"] < 2 || seen["output"] < 2 || seen["yaml"] != 1 || seen["json"] != 1 {
		t.Errorf("blocks: %v", seen)
	}
}

func (p *page) command(line string) {
	p.t.Helper()
	fields := strings.Fields(line)
	switch {
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
		r := start(p.t, runDaemon, p.environ()...)
		p.up = &r
	case fields[0] == "weft":
		r := weft(p.t, p.environ(), fields[1:]...)
		if r.code != 0 {
			p.t.Fatalf("%s: %+v", line, r)
		}
		p.last = func() string { return r.out }
	case fields[0] == "curl":
		url := strings.Trim(fields[len(fields)-1], "'")
		url = strings.Replace(strings.Replace(url, "localhost:9200", testenv.ElasticURL(p.t), 1), "/products/", "/"+p.index+"/", 1)
		p.last = func() string { return p.get(url) }
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
	testenv.Eventually(p.t, time.Minute, func() bool { got = strings.TrimSpace(p.last()); return got == want }, "the output of the page: "+want)
}

func (p *page) get(url string) string {
	p.t.Helper()
	res, err := http.Get(url)
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

func (p *page) stop() {
	if p.up == nil {
		return
	}
	p.up.signals <- syscall.SIGTERM
	if code := <-p.up.code; code != 0 || p.t.Failed() {
		p.t.Errorf("weft run ended with %d: %s", code, p.up.errOut)
	}
}
