package faults

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/samuelhu324-dev/weft/internal/lab/rig"
	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/internal/testenv/proxy"
)

func TestMain(m *testing.M) { testenv.MainNoServers(m) }

func TestCatalogueIsSound(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, f := range All() {
		if seen[f.Name] {
			t.Errorf("%s is in the catalogue twice", f.Name)
		}
		seen[f.Name] = true
		if f.About == "" || f.Inject == nil || f.Share < 0 {
			t.Errorf("%s: has no description, or cannot be injected", f.Name)
		}
		if f.Draw == nil {
			continue
		}
		var p, again Params
		f.Draw(&Dice{rand.New(rand.NewPCG(1, 2))}, &p)
		f.Draw(&Dice{rand.New(rand.NewPCG(1, 2))}, &again)
		if p != again || p.Hold < 0 {
			t.Errorf("%s: drew %+v and %+v from one seed", f.Name, p, again)
		}
	}
	if len(seen) < 30 || Named("earthquake") != nil {
		t.Errorf("catalogue: got %d faults, want 30 at least, and no earthquake", len(seen))
	}
	var out strings.Builder
	List(&out)
	if got := strings.Count(out.String(), "\n"); got != len(seen) {
		t.Errorf("list: got %d lines, want %d", got, len(seen))
	}
}

func TestNamesAreThoseOfFaults(t *testing.T) {
	t.Parallel()
	var l Names
	if err := l.Set("sigkill, alias-removed"); err != nil || l.String() != "sigkill,alias-removed" {
		t.Errorf("two names: got %q (%v)", &l, err)
	}
	if err := l.Set("sigkill,earthquake"); err == nil || err.Error() != `no fault is named "earthquake"; --list names them` {
		t.Errorf("an unknown name: got %v", err)
	}
}

func TestSignalsReachAnyProcess(t *testing.T) {
	t.Parallel()
	var got []syscall.Signal
	want := []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM, syscall.SIGSTOP}
	for n, name := range []string{SIGKILL, SIGTERM, SIGSTOP} {
		i := New(name, nil, nil, Params{})
		i.Signal = func(sig syscall.Signal) (time.Time, error) {
			got = append(got, sig)
			return time.UnixMicro(int64(sig)), nil
		}
		if err := i.Inject(t.Context()); err != nil || i.At != time.UnixMicro(int64(want[n])) {
			t.Errorf("%s: got %v at %v, want the time of the signal", name, err, i.At)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("signals (-want +got):\n%s", diff)
	}
}

// A drill asks for a fault by its name alone, and says nothing of its latency.
func TestLatencyDelaysRequests(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(server.Close)
	proxies, err := proxy.NewProxies("a", strings.Replace(server.URL, "http", "postgres", 1)+"/d", server.URL, new(proxy.Recorder))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = proxies.Close() })
	for name, at := range map[string]string{"latency-elastic": proxies.ElasticURL, "latency-postgres": strings.Replace(strings.TrimSuffix(proxies.DatabaseURL, "/d"), "postgres", "http", 1)} {
		i := New(name, nil, &rig.Member{Proxies: proxies}, Params{Variant: 1})
		if err := i.Inject(t.Context()); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		ask(t, at)
		if took, want := time.Since(began), someLatency-someLatency/4; took < want {
			t.Errorf("%s: a request took %v, want %v at least", name, took, want)
		}
		if err := i.Heal(t.Context()); err != nil {
			t.Errorf("%s: heal: %v", name, err)
		}
		ask(t, at)
	}
}

func ask(t *testing.T, url string) {
	t.Helper()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	answer, err := client.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	_ = answer.Body.Close()
}

func TestServersOfOthersAreLeftAlone(t *testing.T) {
	t.Parallel()
	target := &Target{Group: &rig.Group{}, Place: &rig.Place{}}
	for _, name := range []string{PostgresRestartFast, PostgresRestartImmediate, PostgresSIGKILL, ElasticSIGKILL} {
		err := New(name, target, nil, Params{}).Inject(context.Background())
		if _, ok := errors.AsType[Never](err); !ok {
			t.Errorf("%s: got %v, want it ruled out", name, err)
		}
	}
}
