//go:build compose

// Package compose_test starts compose.yaml with podman-compose.
package compose_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/internal/testenv/podman"
	"github.com/samuelhu324-dev/weft/internal/testenv/stack"
	"github.com/samuelhu324-dev/weft/leader"
)

func TestMain(m *testing.M) { testenv.MainNoServers(m) }

const (
	tree     = "../.."
	debian   = "stand-in/debian"
	database = "127.0.0.1:5432" // where compose.yaml publishes them
	elastic  = "127.0.0.1:9200"
	// enough for Elasticsearch, and no more than a process without CAP_SYS_RESOURCE may have
	limits = "[containers]\ndefault_ulimits = [\"nofile=16384:16384\", \"nproc=16384:16384\"]\n"
)

// project is compose.yaml with images of its names that were made here.
type project struct {
	*podman.Podman
	t       *testing.T
	wrapper string
	env     []string
}

func newProject(t *testing.T) *project {
	t.Helper()
	for _, address := range []string{database, elastic} {
		l, err := net.Listen("tcp", address)
		if err != nil {
			t.Fatalf("compose.yaml publishes %s: %v", address, err)
		}
		_ = l.Close()
	}
	p := &project{Podman: podman.New(t, "overlay"), t: t}
	// podman 4.3 starts nothing that requires a container which requires another one.
	// podman-compose waits for them anyway.
	p.wrapper = p.Wrapper("--requires=")
	conf := filepath.Join(t.TempDir(), "containers.conf")
	if err := os.WriteFile(conf, []byte(limits), 0o600); err != nil {
		t.Fatal(err)
	}
	// Without systemd podman has no timer for a health check: the test asks for it.
	p.env = append(os.Environ(), "CONTAINERS_CONF="+conf, "DISABLE_HC_SYSTEMD=true")
	t.Cleanup(p.tell)
	return p
}

// tell shows what the containers said where the test has failed.
func (p *project) tell() {
	if !p.t.Failed() {
		return
	}
	ctx := context.Background() // the test's own has ended
	names, err := p.Try(ctx, "ps", "--all", "--format", "{{.Names}}")
	if err != nil {
		p.t.Log(err)
	}
	for name := range strings.FieldsSeq(names) {
		said, err := p.Try(ctx, "logs", "--tail", "40", name)
		p.t.Logf("%s: %v\n%s", name, err, said)
	}
}

func (p *project) command(name string, args ...string) string {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), 15*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = p.env
	out, err := cmd.CombinedOutput()
	if err != nil {
		p.t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

func (p *project) compose(args ...string) {
	p.t.Helper()
	p.t.Logf("podman-compose %s\n%s", strings.Join(args, " "),
		p.command("podman-compose", append([]string{"--podman-path", p.wrapper, "--file", "compose.yaml"}, args...)...))
}

// images makes what compose.yaml names: weft from the Containerfile, the servers from
// the archives of the stack on a small Debian.
func (p *project) images() {
	p.t.Helper()
	p.ShareGoCache()
	p.Prepare(tree)
	p.Build(tree, "weft", "v0.0.0-compose", "0123456789ab")
	root := filepath.Join(p.t.TempDir(), "debian")
	p.command("debootstrap", "--variant=minbase", "--include=openjdk-17-jre-headless,postgresql-client", "bookworm", root)
	archive := root + ".tar"
	p.command("tar", "-C", root, "-cf", archive, "--exclude=./var/cache/apt/*", "--exclude=./var/lib/apt/lists/*", ".")
	p.Run("import", archive, debian)
	postgres, elasticsearch, err := stack.Homes(p.t.Context(), p.t.Output())
	if err != nil {
		p.t.Fatal(err)
	}
	for tag, from := range map[string]struct{ dir, home string }{
		"docker.io/library/postgres:17":                                         {"testdata/postgres", postgres},
		"docker.elastic.co/elasticsearch/elasticsearch:" + stack.DefaultElastic: {"testdata/elasticsearch", elasticsearch},
	} {
		dir := filepath.Join(p.t.TempDir(), "image")
		p.command("cp", "-r", from.dir, dir)
		p.command("cp", "-r", from.home, filepath.Join(dir, "home"))
		p.Run("build", "--pull=never", "--isolation=chroot", "--tag", tag, dir)
	}
}

// TestComposeProject starts the pair and its two servers as the file says, writes as an
// application does, finds it by a search, and kills the leader.
func TestComposeProject(t *testing.T) {
	t.Parallel()
	p := newProject(t)
	p.images()
	p.compose("up", "--detach", "--no-build", "postgres", "elasticsearch")
	// podman 4.3 cannot wait until a container is healthy, so podman-compose does not.
	testenv.Eventually(t, func() bool {
		_, err := p.Try(t.Context(), "healthcheck", "run", "weft_postgres_1")
		return err == nil
	}, "the health check of postgres succeeds")
	p.compose("up", "--detach", "--no-build", "weft")
	password, err := os.ReadFile("secrets/postgres-password")
	if err != nil {
		t.Fatal(err)
	}
	pool := testenv.Pool(t, fmt.Sprintf("postgres://postgres:%s@%s/wordloom?sslmode=disable", strings.TrimSpace(string(password)), database))

	first := leads(t, pool, 1)
	write(t, pool, "upsert", 1, "the keeper of the lighthouse")
	finds(t, "lighthouse", 1)
	write(t, pool, "upsert", 2, "the keeper of the ferry")
	finds(t, "ferry", 1)
	finds(t, "lighthouse", 0)

	container := p.containerOf(first)
	p.crash(container)
	if next := leads(t, pool, 2); next == first {
		t.Errorf("%s leads again, want the other instance", next)
	}
	write(t, pool, "upsert", 3, "the keeper of the archive")
	finds(t, "archive", 1)
	testenv.Eventually(t, func() bool {
		return p.Run("inspect", "--format", "{{.State.Status}}", container) == "running"
	}, "the instance that was killed runs again")
	write(t, pool, "delete", 4, "")
	finds(t, "archive", 0)

	pool.Close()
	p.compose("down", "--volumes")
	if left := p.Run("ps", "--all", "--quiet"); left != "" {
		t.Errorf("containers left: %s", left)
	}
}

// crash kills a container's process from outside: what podman kill has ended stays ended.
func (p *project) crash(container string) {
	p.t.Helper()
	pid, err := strconv.Atoi(p.Run("inspect", "--format", "{{.State.Pid}}", container))
	if err != nil || pid <= 1 {
		p.t.Fatalf("process %d of %s: %v", pid, container, err)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		p.t.Fatal(err)
	}
}

// containerOf returns the container of an instance, whose name begins with its host's.
func (p *project) containerOf(instance string) string {
	p.t.Helper()
	for _, name := range []string{"weft_weft_1", "weft_weft_2"} {
		if id := p.Run("inspect", "--format", "{{.Id}}", name); strings.HasPrefix(id, strings.SplitN(instance, "-", 2)[0]) {
			return name
		}
	}
	p.t.Fatalf("no container of instance %s", instance)
	return ""
}

// leads waits for a leader in epoch or a later one, and returns its name.
func leads(t *testing.T, pool *pgxpool.Pool, epoch int64) (name string) {
	t.Helper()
	testenv.Eventually(t, func() bool {
		st, err := leader.ReadState(t.Context(), pool, "weft")
		name = st.Instance
		return err == nil && st.Led() && st.Epoch >= epoch
	}, fmt.Sprintf("a leader in epoch %d", epoch))
	return name
}

// write is what an application does in one transaction: its row, and the event.
func write(t *testing.T, pool *pgxpool.Pool, op string, version int, text string) {
	t.Helper()
	row := `insert into search_index (entity_type, entity_id, text, event_version) values ('book', md5('compose')::uuid, $3, $2)
		on conflict (entity_type, entity_id) do update set text = excluded.text, event_version = excluded.event_version`
	if op == "delete" {
		row = `delete from search_index where entity_id = md5('compose')::uuid and $2::int > 0 and $3 = ''`
	}
	sql := `with changed as (` + row + ` returning entity_type, entity_id)
		insert into search_outbox_events (entity_type, entity_id, op, event_version) select entity_type, entity_id, $1, $2 from changed`
	if _, err := pool.Exec(t.Context(), sql, op, version, text); err != nil {
		t.Fatal(err)
	}
}

// finds waits until a search for word has as many hits.
func finds(t *testing.T, word string, want int) {
	t.Helper()
	testenv.Eventually(t, func() bool {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+elastic+"/wordloom-search-index/_search",
			strings.NewReader(fmt.Sprintf(`{"query": {"match": {"text": %q}}}`, word)))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		req.Close = true
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			return false
		}
		defer res.Body.Close()
		var found struct {
			Hits struct{ Total struct{ Value int } }
		}
		return json.NewDecoder(res.Body).Decode(&found) == nil && res.StatusCode == http.StatusOK && found.Hits.Total.Value == want
	}, fmt.Sprintf("a search for %q finds %d", word, want))
}
