package homes

import (
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/samuelhu324-dev/weft/internal/admin"
	"github.com/samuelhu324-dev/weft/internal/config"
	"github.com/samuelhu324-dev/weft/internal/testenv/pki"
)

// kind returns the one object of its kind.
func kind[T runtime.Object](t *testing.T, text string) (found T) {
	t.Helper()
	for _, doc := range split(t, text) {
		obj, err := create(t, doc)
		if err != nil {
			t.Fatal(err)
		}
		if want, ok := obj.(T); ok {
			return want
		}
	}
	t.Fatalf("no %T", found)
	return found
}

func templates(t *testing.T) map[string]corev1.PodTemplateSpec {
	t.Helper()
	return map[string]corev1.PodTemplateSpec{
		"Deployment": kind[*appsv1.Deployment](t, built(t)).Spec.Template,
		"Job":        kind[*batchv1.Job](t, read(t, "k8s/migrate.yaml")).Spec.Template,
	}
}

// TestNothingIsLostOnTheWay holds what a rolling update, a drained node and a stop need.
func TestNothingIsLostOnTheWay(t *testing.T) {
	t.Parallel()
	d := kind[*appsv1.Deployment](t, built(t))
	if *d.Spec.Replicas != 2 {
		t.Errorf("%d replicas, want a pair", *d.Spec.Replicas)
	}
	if u := d.Spec.Strategy.RollingUpdate; u == nil || u.MaxUnavailable.IntValue() != 0 || u.MaxSurge.IntValue() < 1 {
		t.Errorf("strategy %+v: an old pod may go before a new one is ready", d.Spec.Strategy)
	}
	b := kind[*policyv1.PodDisruptionBudget](t, built(t))
	if b.Spec.MinAvailable == nil || b.Spec.MinAvailable.IntValue() < 1 || b.Spec.MinAvailable.IntValue() >= int(*d.Spec.Replicas) {
		t.Errorf("budget of at least %v of %d: drains take both, or none at all", b.Spec.MinAvailable, *d.Spec.Replicas)
	}
	for _, s := range []map[string]string{b.Spec.Selector.MatchLabels, d.Spec.Selector.MatchLabels, kind[*corev1.Service](t, built(t)).Spec.Selector} {
		for name, p := range templates(t) {
			if got := labels.SelectorFromSet(s).Matches(labels.Set(p.Labels)); got != (name == "Deployment") {
				t.Errorf("selector %v: got %v for the pods of the %s", s, got, name)
			}
		}
	}
	c := d.Spec.Template.Spec.Containers[0]
	wait := time.Duration(0)
	for _, a := range c.Lifecycle.PreStop.Exec.Command {
		if v, ok := strings.CutPrefix(a, "--wait="); ok {
			var err error
			if wait, err = time.ParseDuration(v); err != nil {
				t.Fatal(err)
			}
		}
	}
	patience := time.Duration(*d.Spec.Template.Spec.TerminationGracePeriodSeconds) * time.Second
	if grace := config.Default().Outbox.ShutdownGrace; wait == 0 || patience <= wait+grace+5*time.Second {
		t.Errorf("terminationGracePeriodSeconds is %v; preStop waits %v, and the shutdown grace is %v", patience, wait, grace)
	}
}

// TestProbesAreServed asks the server of health for what the probes ask for.
func TestProbesAreServed(t *testing.T) {
	t.Parallel()
	health := admin.NewHealth("weft", "a")
	health.Require("postgres", true)
	h := admin.HealthHandler(health)
	c := templates(t)["Deployment"].Spec.Containers[0]
	for path, want := range map[string]int{c.LivenessProbe.HTTPGet.Path: http.StatusOK, c.ReadinessProbe.HTTPGet.Path: http.StatusServiceUnavailable} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		if w.Code != want {
			t.Errorf("%s of an instance that has just begun: got %d, want %d", path, w.Code, want)
		}
	}
	if c.LivenessProbe.HTTPGet.Path != "/health/live" || c.ReadinessProbe.HTTPGet.Path != "/health/ready" {
		t.Errorf("probes ask for %s and %s", c.LivenessProbe.HTTPGet.Path, c.ReadinessProbe.HTTPGet.Path)
	}
}

// TestSettingsAreKnown loads the settings that the pods get.
func TestSettingsAreKnown(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	here := func(s string) string {
		return strings.NewReplacer("/etc/weft/config", dir, "/etc/weft/secrets", dir).Replace(s)
	}
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range kind[*corev1.ConfigMap](t, built(t)).Data {
		write(name, here(text))
	}
	authority, err := pki.New("homes")
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range kind[*corev1.Secret](t, read(t, "k8s/secret.example.yaml")).StringData {
		if strings.HasSuffix(name, ".pem") {
			text = string(authority.PEM())
		}
		write(name, text)
	}
	for name, p := range templates(t) {
		for _, c := range containers(p.Spec) {
			var environ, names []string
			for _, e := range c.Env {
				if e.ValueFrom != nil {
					e.Value = "weft-7d9c5b8f6d-x2x4q" // of the pod
				}
				environ, names = append(environ, e.Name+"="+here(e.Value)), append(names, e.Name)
			}
			file := ""
			for _, a := range c.Args {
				if v, ok := strings.CutPrefix(a, "--config="); ok {
					file = here(v)
				}
			}
			got := load(t, name+"/"+c.Name, config.Options{File: file, Environ: environ}, names)
			if got.Group != "weft" || !strings.HasPrefix(got.Database.URL.Reveal(), "postgres://weft") || !strings.Contains(got.Database.URL.Reveal(), "sslmode=verify-full") {
				t.Errorf("%s/%s: group %q, database %v", name, c.Name, got.Group, got.Database.URL)
			}
			if name == "Job" {
				continue
			}
			if port := c.Ports[0].ContainerPort; int(port) != got.HTTP.MetricsPort || got.HTTP.Host != "0.0.0.0" {
				t.Errorf("%s serves on %s:%d, and the port of the container is %d", name, got.HTTP.Host, got.HTTP.MetricsPort, port)
			}
			if !slices.Contains(names, "WEFT_INSTANCE") {
				t.Errorf("%s: no WEFT_INSTANCE: weft resign --own does not know whom to ask for", name)
			}
		}
	}
}

// load holds that the settings parse, and that weft knows each name of the environment.
func load(t *testing.T, what string, o config.Options, names []string) config.Config {
	t.Helper()
	c, err := config.Load(o)
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	var sources []string
	for _, v := range c.Effective() {
		sources = append(sources, v.Source)
	}
	for _, n := range names {
		if !slices.ContainsFunc(sources, func(s string) bool { return strings.Contains(s, n) }) {
			t.Errorf("%s: weft does not know %s", what, n)
		}
	}
	return c
}

// weft builds the program.
func weft(t *testing.T) string {
	t.Helper()
	bin := filepath.Join(t.TempDir(), "weft")
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "go", "build", "-o", bin, "./cmd/weft")
	cmd.Dir = "../.."
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	return bin
}

// asks fails when weft does not know a command line.
func asks(t *testing.T, bin, what string, args []string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, bin, append(slices.Clone(args), "--help")...)
	cmd.Env = []string{"HOME=" + t.TempDir()}
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "\n  weft "+args[0]) {
		t.Errorf("%s: weft %s: %v\n%s", what, strings.Join(args, " "), err, out)
	}
}

func TestCommandsAreKnown(t *testing.T) {
	t.Parallel()
	bin := weft(t)
	for name, p := range templates(t) {
		for _, c := range containers(p.Spec) {
			if len(c.Command) > 0 {
				t.Errorf("%s/%s: its command %q takes the place of the image's", name, c.Name, c.Command)
			}
			asks(t, bin, name+"/"+c.Name, c.Args)
			if c.Lifecycle == nil {
				continue
			}
			stop := c.Lifecycle.PreStop.Exec.Command
			if entry := image(t).Config.Entrypoint; stop[0] != entry[0] || stop[1] != "resign" {
				t.Errorf("%s/%s: preStop is %q, and the image has %q", name, c.Name, stop, entry)
			}
			asks(t, bin, name+"/"+c.Name, stop[1:])
		}
	}
	for name, s := range project(t).Services {
		if s.Image == "weft" && len(s.Command) > 0 {
			asks(t, bin, name, s.Command)
		}
	}
}
