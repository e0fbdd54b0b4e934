//go:build container

// Package container_test builds the image and runs a pair of it.
package container_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"go.yaml.in/yaml/v3"

	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/internal/testenv/podman"
	"github.com/samuelhu324-dev/weft/internal/testenv/process"
	"github.com/samuelhu324-dev/weft/leader"
)

func TestMain(m *testing.M) { testenv.Main(m) }

const (
	tree  = "../.."
	image = "weft"
)

// place is a podman that starts instances of weft.
type place struct {
	*podman.Podman
	t *testing.T
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// start runs an instance with as little as the manifests give it.
func (p *place) start(name string, env ...string) (port int) {
	p.t.Helper()
	port, err := process.FreePort()
	if err != nil {
		p.t.Fatal(err)
	}
	args := []string{"run", "--detach", "--name", name, "--network=host", "--read-only", "--read-only-tmpfs=false", "--cap-drop=all", "--security-opt=no-new-privileges",
		// What this process may have, in case that it may not raise it.
		"--ulimit=nofile=1024:1024", "--ulimit=nproc=1024:1024", "--stop-timeout=45"}
	for _, e := range append(env, "WEFT_INSTANCE="+name, "WEFT_HTTP_HOST=127.0.0.1", "OUTBOX_METRICS_PORT="+strconv.Itoa(port)) {
		args = append(args, "--env", e)
	}
	p.Run(append(args, image)...)
	return port
}

// preStop is the command of the Kubernetes manifest, without the file of settings: these
// come from the environment here.
func preStop(t *testing.T) []string {
	t.Helper()
	var d struct {
		Spec struct {
			Template struct {
				Spec struct {
					Containers []struct {
						Lifecycle struct {
							PreStop struct {
								Exec struct{ Command []string }
							} `yaml:"preStop"`
						}
					}
				}
			}
		}
	}
	if err := yaml.Unmarshal([]byte(read(t, tree+"/deploy/k8s/deployment.yaml")), &d); err != nil {
		t.Fatal(err)
	}
	command := d.Spec.Template.Spec.Containers[0].Lifecycle.PreStop.Exec.Command
	n := len(command)
	command = slices.DeleteFunc(command, func(a string) bool { return strings.HasPrefix(a, "--config=") })
	if len(command) != n-1 {
		t.Fatalf("preStop is %q, want one --config", command)
	}
	return command
}

// TestPairInContainers builds the image, runs two of it, and takes the leader away as
// Kubernetes does.
func TestPairInContainers(t *testing.T) {
	t.Parallel()
	p := &place{podman.New(t, "vfs"), t}
	p.Prepare(tree)
	p.Build(tree, image, "v0.0.0-image", "0123456789ab")
	p.sameElsewhere("v0.0.0-image", "0123456789ab")
	p.billed("v0.0.0-image", "0123456789ab")
	if got := p.Run("run", "--rm", "--network=none", "--ulimit=nofile=1024:1024", "--ulimit=nproc=1024:1024", image, "version"); !strings.HasPrefix(got, "weft v0.0.0-image (commit 0123456789ab,") {
		t.Errorf("weft version says %q", got)
	}

	url, index := testenv.Database(t), testenv.Index(t)
	pool := testenv.Pool(t, url)
	env := []string{"DATABASE_URL=" + url, "ELASTIC_URL=" + testenv.ElasticURL(t), "ELASTIC_INDEX=" + index}
	leads := func(want string) {
		t.Helper()
		testenv.Eventually(t, func() bool {
			st, err := leader.ReadState(t.Context(), pool, "weft")
			return err == nil && st.Led() && st.Instance == want
		}, want+" leads")
	}
	ports := map[string]int{"a": p.start("a", env...)}
	leads("a")
	ports["b"] = p.start("b", env...)
	for name, port := range ports {
		for _, path := range []string{"/health/live", "/health/ready"} {
			testenv.Eventually(t, func() bool { return status(t, port, path) == http.StatusOK }, name+path)
		}
		p.locked(name)
	}
	carried(t, pool, 1)

	stop := preStop(t)
	if out := p.Run(append([]string{"exec", "b"}, stop...)...); !strings.Contains(out, "b does not lead") {
		t.Errorf("preStop of the standby: %q", out)
	}
	leads("a")
	if out := p.Run(append([]string{"exec", "a"}, stop...)...); !strings.Contains(out, "b leads in epoch 2") {
		t.Errorf("preStop of the leader: %q", out)
	}
	p.Run("stop", "a")
	if code := p.Run("inspect", "--format", "{{.State.ExitCode}}", "a"); code != "0" {
		t.Errorf("exit code %s after the hand-over, want 0", code)
	}
	leads("b")
	carried(t, pool, 2)
	// Without preStop, as Compose does it.
	p.start("c", env...)
	p.Run("stop", "b")
	if code := p.Run("inspect", "--format", "{{.State.ExitCode}}", "b"); code != "0" {
		t.Errorf("exit code %s of a leader that was stopped, want 0", code)
	}
	leads("c")
	carried(t, pool, 3)
}

// sameElsewhere holds that another directory with the same sources gives the same image at
// another time.
func (p *place) sameElsewhere(version, commit string) {
	p.t.Helper()
	dir := p.t.TempDir()
	copied := exec.CommandContext(p.t.Context(), "sh", "-ec", `git ls-files -z | xargs -0 cp --parents -t "$0"`, dir)
	copied.Dir = tree
	if out, err := copied.CombinedOutput(); err != nil {
		p.t.Fatalf("copy of the sources: %v\n%s", err, out)
	}
	p.Build(dir, image+"-again", version, commit)
	const format = "{{.Id}} {{.Digest}} {{.RootFS.Layers}}"
	one, two := p.Run("inspect", "--type=image", "--format", format, image), p.Run("inspect", "--type=image", "--format", format, image+"-again")
	if one != two {
		p.t.Errorf("the same sources gave two images:\n%s\n%s", one, two)
	}
}

// billed holds that the binary in the image is the one that the package and the tarball of
// such a release have, and that the bill of materials beside it is its own.
func (p *place) billed(version, commit string) {
	p.t.Helper()
	dir := p.t.TempDir()
	p.Run("create", "--name", "files", image)
	for _, name := range []string{"weft", "weft.cdx.json"} {
		p.Run("cp", "files:/"+name, dir)
	}
	p.Run("rm", "files")
	made := exec.CommandContext(p.t.Context(), "bash", "-euc",
		`. deploy/release/stage.bash; version=$1 commit=$2; compile "$0/native"; SOURCE_DATE_EPOCH=1700000000 bill "$0/native" >"$0/native.cdx.json"`, dir, version, commit)
	made.Dir = tree
	if out, err := made.CombinedOutput(); err != nil {
		p.t.Fatalf("binary of a release: %v\n%s", err, out)
	}
	for got, want := range map[string]string{"weft": "native", "weft.cdx.json": "native.cdx.json"} {
		if read(p.t, filepath.Join(dir, got)) != read(p.t, filepath.Join(dir, want)) {
			p.t.Errorf("/%s in the image is not that of a release", got)
		}
	}
}

// locked holds that a running container is nobody, may do nothing more, and cannot write.
func (p *place) locked(name string) {
	p.t.Helper()
	pid := p.Run("inspect", "--format", "{{.State.Pid}}", name)
	if got := strings.Fields(p.Run("top", name, "user", "group")); !slices.Equal(got, []string{"USER", "GROUP", "65532", "65532"}) {
		p.t.Errorf("%s: runs as %v, want 65532", name, got)
	}
	got := map[string]string{}
	for line := range strings.Lines(read(p.t, "/proc/"+pid+"/status")) {
		key, value, _ := strings.Cut(line, ":")
		got[key] = strings.Join(strings.Fields(value), " ")
	}
	for key, want := range map[string]string{
		"NoNewPrivs": "1", "Seccomp": "2",
		"CapEff": "0000000000000000", "CapPrm": "0000000000000000", "CapBnd": "0000000000000000",
	} {
		if got[key] != want {
			p.t.Errorf("%s: %s is %q, want %q", name, key, got[key], want)
		}
	}
	for line := range strings.Lines(read(p.t, "/proc/"+pid+"/mountinfo")) {
		if f := strings.Fields(line); f[4] == "/" && !slices.Contains(strings.Split(f[5], ","), "ro") {
			p.t.Errorf("%s: its root is mounted %s", name, f[5])
		}
	}
}

func status(t *testing.T, port int, path string) int {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d%s", port, path), nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0
	}
	defer http.DefaultClient.CloseIdleConnections()
	defer res.Body.Close()
	var body json.RawMessage
	if err := json.NewDecoder(res.Body).Decode(&body); err != nil {
		t.Errorf("%s: %v", path, err)
	}
	return res.StatusCode
}

// carried writes events and waits until they are done.
func carried(t *testing.T, pool *pgxpool.Pool, round int) {
	t.Helper()
	const sql = `with rows as (
		insert into search_index (entity_type, entity_id, text, event_version)
		select 'book', md5('e' || n)::uuid, 'round ' || $1::int, $1::int from generate_series(1, 500) n
		on conflict (entity_type, entity_id) do update set text = excluded.text, event_version = excluded.event_version
		returning *)
		insert into search_outbox_events (entity_type, entity_id, op, event_version)
		select entity_type, entity_id, 'upsert', event_version from rows`
	if _, err := pool.Exec(t.Context(), sql, round); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, func() bool {
		var left int
		if err := pool.QueryRow(t.Context(), `select count(*) from search_outbox_events where status <> 'done' or reclaims > 0`).Scan(&left); err != nil {
			t.Fatal(err)
		}
		return left == 0
	}, fmt.Sprintf("the events of round %d are done, and none was reclaimed", round))
}
