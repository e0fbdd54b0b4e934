//go:build kubelet

// Package k8s_test runs the pair of deploy/k8s on a node of a real cluster, under load, and
// does to it what Kubernetes does.
package k8s_test

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/internal/testenv/podman"
	"github.com/samuelhu324-dev/weft/leader"
)

func TestMain(m *testing.M) { testenv.Main(m) }

const (
	tree  = "../.."
	image = "registry.example/weft"
	pause = "weft.test/pause:1"
	owner = "weft_owner" // of roles.sql
	// What the node does is bounded by the grace of a pod, 45 s, and by the probes.
	bound = 3 * time.Minute
)

// pair is weft in the cluster, and the servers that it reaches by the gateway.
type pair struct {
	*cluster
	pool    *pgxpool.Pool
	index   string
	elastic *forward
	load    *load
}

// TestPairOnANode runs the manifests on one node: the Job migrates, and two pods work under
// load while pods are deleted, updated, killed, frozen and drained.
func TestPairOnANode(t *testing.T) {
	t.Parallel()
	base, elastic := os.Getenv("DATABASE_URL"), testenv.ElasticURL(t)
	images := t.TempDir()
	makeImages(t, images)
	p := &pair{cluster: startCluster(t), index: testenv.Index(t)}
	for _, name := range []string{"pause", "one", "two"} {
		p.must("ctr", p.ctr("images", "import", filepath.Join(images, name+".tar"))...)
	}
	database := p.makeDatabase(base)
	p.pool = testenv.Pool(t, database)
	postgres := newForward(t, database)
	p.elastic = newForward(t, elastic)
	p.deploy(func(role string) string {
		return changed(t, database, func(u *url.URL) { u.Host, u.User = postgres.address(), url.User(role) })
	})
	p.load = startLoad(t, p.pool)

	p.deletedLeaderHandsOver()
	p.updateKeepsBothReady()
	p.killedLeaderIsReplaced()
	p.frozenLeaderIsStartedAnew()
	p.outageMakesNotReady()
	p.drainLeavesOne()

	p.load.stop()
	p.nothingLost(database, elastic)
}

func makeImages(t *testing.T, dir string) {
	t.Helper()
	p := podman.New(t, "overlay")
	p.ShareGoCache()
	p.Prepare(tree)
	p.Build(tree, image+":one", "v0.0.0-one", "0123456789ab")
	const next = "FROM " + image + ":one\nLABEL version=two\n"
	p.Run("build", "--pull=never", "--tag", image+":two", directory(t, map[string]string{"Containerfile": next}))
	p.Run("build", "--pull=never", "--tag", pause, sleeper(t))
	for name, tag := range map[string]string{"pause": pause, "one": image + ":one", "two": image + ":two"} {
		p.Run("save", "--output", filepath.Join(dir, name+".tar"), tag)
	}
}

// sleeper is the directory of an image that keeps a pod's network and does nothing.
func sleeper(t *testing.T) string {
	t.Helper()
	busybox, err := os.ReadFile("/bin/busybox")
	if err != nil {
		t.Fatal(err)
	}
	const containerfile = "FROM scratch\nCOPY --chmod=755 busybox /\nUSER 65535:65535\nENTRYPOINT [\"/busybox\", \"sleep\", \"1000000000\"]\n"
	return directory(t, map[string]string{"busybox": string(busybox), "Containerfile": containerfile})
}

func directory(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// makeDatabase makes an empty database with the roles of roles.sql.
func (p *pair) makeDatabase(base string) string {
	p.t.Helper()
	pool := testenv.Pool(p.t, base)
	const name = "weft_kubelet"
	if _, err := pool.Exec(p.t.Context(), "create database "+name); err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() {
		if _, err := pool.Exec(context.WithoutCancel(p.t.Context()), "drop database "+name+" with (force)"); err != nil {
			p.t.Error(err)
		}
	})
	database := changed(p.t, base, func(u *url.URL) { u.Path = "/" + name })
	roles, err := os.ReadFile("../postgres/roles.sql")
	if err != nil {
		p.t.Fatal(err)
	}
	if _, err := testenv.Pool(p.t, database).Exec(p.t.Context(), string(roles)); err != nil {
		p.t.Fatal(err)
	}
	return database
}

// deploy does what the first lines of kustomization.yaml say.
func (p *pair) deploy(database func(role string) string) {
	p.t.Helper()
	p.kubectl("create", "namespace", "weft")
	p.kubectl("label", "namespace", "weft", "pod-security.kubernetes.io/enforce=restricted")
	p.kubectl("create", "secret", "generic", "weft", "--from-literal=database-url="+database("weft"))
	p.kubectl("create", "secret", "generic", "weft-owner", "--from-literal=database-url="+database(owner))
	migrate, err := os.ReadFile("migrate.yaml")
	if err != nil {
		p.t.Fatal(err)
	}
	job := p.at("migrate.yaml")
	p.write(job, strings.ReplaceAll(string(migrate), image+":latest", image+":one"))
	p.kubectl("apply", "-f", "serviceaccount.yaml", "-f", job)
	p.kubectl("wait", "--for=condition=complete", "--timeout=3m", "job/weft-migrate")

	here, err := filepath.Abs(".")
	if err != nil {
		p.t.Fatal(err)
	}
	from, err := filepath.Rel(p.at("overlay"), here)
	if err != nil {
		p.t.Fatal(err)
	}
	if err := os.Mkdir(p.at("overlay"), 0o700); err != nil {
		p.t.Fatal(err)
	}
	p.write(p.at("overlay/kustomization.yaml"), fmt.Sprintf("resources: [%s]\nimages: [{name: %s, newTag: one}]\npatches: [{path: settings.yaml}]\n", from, image))
	p.write(p.at("overlay/settings.yaml"), fmt.Sprintf(`apiVersion: v1
kind: ConfigMap
metadata: {name: weft}
data:
  weft.yaml: |
    group: weft
    elastic: {url: "http://%s", index: %s}
    database: {url_file: /etc/weft/secrets/database-url}
    http: {host: 0.0.0.0}
`, p.elastic.address(), p.index))
	p.kubectl("apply", "-k", p.at("overlay"))
	p.kubectl("rollout", "status", "deployment/weft", "--timeout=3m")
	p.leads(func(s leader.State) bool { return s.Epoch > 0 }, "a pod leads")
}

func (p *pair) write(path, text string) {
	p.t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		p.t.Fatal(err)
	}
}

// leads waits for a leader of whom want holds.
func (p *pair) leads(want func(leader.State) bool, what string) leader.State {
	p.t.Helper()
	var st leader.State
	p.eventually(bound, what, func() (ok bool) {
		var err error
		st, err = leader.ReadState(p.t.Context(), p.pool, "weft")
		return err == nil && st.Led() && want(st)
	})
	return st
}

func (p *pair) leader() leader.State {
	p.t.Helper()
	return p.leads(func(leader.State) bool { return true }, "a pod leads")
}

// after waits for the leader that follows st, and returns the term of st.
func (p *pair) after(st leader.State) leader.PastTerm {
	p.t.Helper()
	p.leads(func(now leader.State) bool { return now.Epoch > st.Epoch }, "another pod leads after "+st.Instance)
	terms, err := leader.History(p.t.Context(), p.pool, "weft", time.Time{}, 100)
	if err != nil {
		p.t.Fatal(err)
	}
	i := slices.IndexFunc(terms, func(term leader.PastTerm) bool { return term.Epoch == st.Epoch })
	if i < 0 {
		p.t.Fatalf("no term %d in %+v", st.Epoch, terms)
	}
	return terms[i]
}

// handedOver holds that preStop, and nothing else, ended the term of st.
func (p *pair) handedOver(st leader.State) {
	p.t.Helper()
	term := p.after(st)
	if term.AskedBy != "kubernetes" || term.AskedWhy != "the pod stops" || term.EndReason != "resigned" || term.Vacant == nil {
		p.t.Errorf("the term of %s ended as %q, asked by %q (%q); want preStop", st.Instance, term.EndReason, term.AskedBy, term.AskedWhy)
		return
	}
	p.t.Logf("preStop: nobody led for %v", term.Vacant.Round(time.Millisecond))
}

func (p *pair) deletedLeaderHandsOver() {
	p.t.Helper()
	since, st := time.Now(), p.leader()
	p.kubectl("delete", "pod", st.Instance)
	p.handedOver(st)
	p.ready(2)
	p.load.report("pod deleted", since)
}

func (p *pair) updateKeepsBothReady() {
	p.t.Helper()
	since, st, old := time.Now(), p.leader(), p.pods()
	p.kubectl("set", "image", "deployment/weft", "weft="+image+":two")
	least := p.leastReadyUntil(func() bool {
		_, err := p.try("rollout", "status", "deployment/weft", "--timeout=1s")
		return err == nil
	})
	if least < 2 {
		p.t.Errorf("%d pods were ready during the update, want 2 at all times", least)
	}
	p.handedOver(st)
	p.ready(2)
	for _, pod := range p.pods() {
		if slices.ContainsFunc(old, func(o workload) bool { return o.Name == pod.Name }) || pod.Image != image+":two" {
			p.t.Errorf("pod %s runs %s after the update", pod.Name, pod.Image)
		}
	}
	p.load.report("rolling update", since)
}

func (p *pair) killedLeaderIsReplaced() {
	p.t.Helper()
	since, st := time.Now(), p.leader()
	p.signal(st.Instance, "SIGKILL")
	p.after(st)
	p.restarted(st.Instance, 1)
	p.ready(2)
	p.load.report("process killed", since)
}

// frozenLeaderIsStartedAnew holds that the liveness probe sees a process that does nothing.
func (p *pair) frozenLeaderIsStartedAnew() {
	p.t.Helper()
	since, st := time.Now(), p.leader()
	before := p.pod(st.Instance).Restarts
	p.signal(st.Instance, "SIGSTOP")
	p.after(st)
	p.restarted(st.Instance, before+1)
	p.ready(2)
	p.load.report("process frozen", since)
}

// outageMakesNotReady holds that without Elasticsearch no pod is ready, and none is restarted.
func (p *pair) outageMakesNotReady() {
	p.t.Helper()
	since, before := time.Now(), p.restarts()
	p.elastic.close()
	p.ready(0)
	p.staysAt(0, 40*time.Second) // longer than it takes to fail a liveness probe
	p.elastic.open()
	p.ready(2)
	if after := p.restarts(); after != before {
		p.t.Errorf("%d containers were started anew during the outage", after-before)
	}
	p.load.report("Elasticsearch away for 40 s and more", since)
}

// drainLeavesOne holds that the budget keeps a pod on a node that has no other to go to.
func (p *pair) drainLeavesOne() {
	p.t.Helper()
	since := time.Now()
	out, err := p.try("drain", "node", "--timeout=30s")
	if err == nil || !strings.Contains(out, "would violate the pod's disruption budget") {
		p.t.Errorf("drain: %v, want a refusal by the budget\n%s", err, out)
	}
	p.ready(1)
	p.kubectl("uncordon", "node")
	p.ready(2)
	p.load.report("node drained", since)
}

// nothingLost holds that each event is done once, and both sides are equal.
func (p *pair) nothingLost(database, elastic string) {
	p.t.Helper()
	var done, open int
	p.eventually(bound, "all events are done", func() bool {
		err := p.pool.QueryRow(p.t.Context(), `select count(*) filter (where status = 'done'), count(*) filter (where status <> 'done')
			from search_outbox_events`).Scan(&done, &open)
		return err == nil && open == 0
	})
	if written := p.load.written(); done != written || written == 0 {
		p.t.Errorf("%d events are done, and %d were written", done, written)
	}
	verify := exec.CommandContext(p.t.Context(), testenv.Program(p.t, "weft"), "verify", "search_index_to_elastic")
	verify.Env = append(os.Environ(), "DATABASE_URL="+database, "ELASTIC_URL="+elastic, "ELASTIC_INDEX="+p.index)
	out, err := verify.CombinedOutput()
	if err != nil {
		p.t.Errorf("weft verify: %v\n%s", err, out)
	}
	p.t.Logf("%d events, all done\n%s", done, out)
}
