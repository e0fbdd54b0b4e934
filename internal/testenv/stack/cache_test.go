package stack

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sync/errgroup"
)

// fakeMvn copies content to where mvn was asked to; what it copies may differ per call.
type fakeMvn struct {
	mu       sync.Mutex
	contents []string // per call; the last one repeats; "!x" fails, printing x
	calls    [][]string
}

func (f *fakeMvn) run(_ context.Context, _ string, args ...string) (string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	content := f.contents[min(len(f.calls), len(f.contents)-1)]
	f.calls = append(f.calls, args)
	if printed, failed := strings.CutPrefix(content, "!"); failed {
		return printed, errors.New("exit status 1")
	}
	var out, coordinates string
	for _, arg := range args {
		if dir, ok := strings.CutPrefix(arg, "-DoutputDirectory="); ok {
			out = dir
		}
		if c, ok := strings.CutPrefix(arg, "-Dartifact="); ok {
			coordinates = c
		}
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		return "", err
	}
	name := artifact{coordinates: coordinates}.fileName()
	return "", os.WriteFile(filepath.Join(out, name), []byte(content), 0o644)
}

type cacheFixture struct {
	cache    *cache
	mvn      *fakeMvn
	pin      artifact
	progress *bytes.Buffer
	whole    string // the right content
}

func newCacheFixture(t *testing.T, contents ...string) *cacheFixture {
	t.Helper()
	const whole = "a whole server"
	sum := sha256.Sum256([]byte(whole))
	f := &cacheFixture{progress: new(bytes.Buffer), whole: whole}
	f.pin = artifact{
		name: "Server 1", coordinates: "org.example.test:server:1.0:zip", sha256: hex.EncodeToString(sum[:]), size: int64(len(whole)), proof: "bin/run",
		unpack: func(archive, dir string) error {
			content, err := os.ReadFile(archive)
			if err != nil {
				return err
			}
			if err := os.MkdirAll(filepath.Join(dir, "bin"), 0o755); err != nil {
				return err
			}
			return os.WriteFile(filepath.Join(dir, "bin/run"), content, 0o755)
		},
	}
	f.mvn = &fakeMvn{contents: contents}
	f.cache = &cache{dir: t.TempDir(), report: newReporter(f.progress), mvn: f.mvn.run}
	return f
}

func (f *cacheFixture) wantWhole(t *testing.T, home string, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("ensure: got %v, want none", err)
	}
	if got, err := os.ReadFile(filepath.Join(home, "bin/run")); err != nil || string(got) != f.whole {
		t.Errorf("server: got %q (%v), want %q", got, err, f.whole)
	}
	f.wantNoLeftOver(t)
}

func (f *cacheFixture) wantNoLeftOver(t *testing.T) {
	t.Helper()
	if left, _ := filepath.Glob(filepath.Join(f.cache.dir, "servers", "*.partial-*")); len(left) > 0 {
		t.Errorf("left over: got %v, want none", left)
	}
}

func TestCacheFetchesOnce(t *testing.T) {
	t.Parallel()

	f := newCacheFixture(t, "a whole server")
	home, err := f.cache.ensure(t.Context(), f.pin)
	f.wantWhole(t, home, err)
	again, err := f.cache.ensure(t.Context(), f.pin)
	f.wantWhole(t, again, err)
	if home != again || len(f.mvn.calls) != 1 {
		t.Errorf("second time: got %s after %d calls of mvn, want %s after 1", again, len(f.mvn.calls), home)
	}
	if args := strings.Join(f.mvn.calls[0], " "); strings.Contains(args, "-Dmaven.repo.local=") {
		t.Errorf("first try: got %q, want it by the user's local repository", args)
	}
}

// A download that takes long says so now and then.
func TestFetchTellsThatItGoesOn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var told strings.Builder
		c := &cache{report: newReporter(&told), mvn: func(context.Context, string, ...string) (string, error) {
			time.Sleep(25 * time.Second) // of the bubble's clock
			return "", nil
		}}
		if _, err := c.mvnTry(t.Context(), "PostgreSQL", "", nil); err != nil {
			t.Fatal(err)
		}
		if want := "stack: PostgreSQL: still fetching after 10 s\nstack: PostgreSQL: still fetching after 20 s\n"; told.String() != want {
			t.Errorf("got %q, want %q", told.String(), want)
		}
	})
}

func TestCacheFetchesATruncatedDownloadAgain(t *testing.T) {
	t.Parallel()

	f := newCacheFixture(t, "a whole", "!connection reset", "a whole server")
	home, err := f.cache.ensure(t.Context(), f.pin)
	f.wantWhole(t, home, err)
	if len(f.mvn.calls) != 3 {
		t.Errorf("calls of mvn: got %d, want 3", len(f.mvn.calls))
	}
	for _, again := range f.mvn.calls[1:] {
		if args := strings.Join(again, " "); !strings.Contains(args, "-Dmaven.repo.local="+f.cache.dir) {
			t.Errorf("another try: got %q, want it past the local repository, which has the damaged copy", args)
		}
	}
	if got := f.progress.String(); !strings.Contains(got, "7 bytes, not the pinned") {
		t.Errorf("progress: got %q, want the damage told", got)
	}
}

func TestCacheRefusesAWrongChecksum(t *testing.T) {
	t.Parallel()

	f := newCacheFixture(t, "another server")
	_, err := f.cache.ensure(t.Context(), f.pin)
	if err == nil || !strings.Contains(err.Error(), f.pin.sha256) || !strings.Contains(err.Error(), "3 tries") {
		t.Errorf("ensure: got %v, want an error with the pinned SHA-256 and the tries", err)
	}
	if f.cache.has(f.pin) {
		t.Error("cache: got the wrong server, want none")
	}
	f.wantNoLeftOver(t)
}

func TestCacheErrorHoldsTheOutputOfMvn(t *testing.T) {
	t.Parallel()

	f := newCacheFixture(t, "![INFO] Scanning\n[ERROR] Could not transfer artifact: unknown host\n")
	_, err := f.cache.ensure(t.Context(), f.pin)
	if err == nil || !strings.Contains(err.Error(), "unknown host") || strings.Contains(err.Error(), "Scanning") {
		t.Errorf("ensure: got %v, want mvn's error lines", err)
	}
}

func TestCacheErrorNamesAFullDisk(t *testing.T) {
	t.Parallel()

	cases := map[string]func(*cacheFixture){
		"Fetching": func(f *cacheFixture) { f.mvn.contents = []string{"!java.io.IOException: No space left on device"} },
		"Unpacking": func(f *cacheFixture) {
			f.pin.unpack = func(string, string) error { return &os.PathError{Op: "write", Path: "x", Err: syscall.ENOSPC} }
		},
	}
	for name, spoil := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newCacheFixture(t, "a whole server")
			spoil(f)
			_, err := f.cache.ensure(t.Context(), f.pin)
			if err == nil || !strings.Contains(err.Error(), "is full") {
				t.Errorf("ensure: got %v, want that the disk is full", err)
			}
			if len(f.mvn.calls) != 1 {
				t.Errorf("calls of mvn: got %d, want 1: another try does not help", len(f.mvn.calls))
			}
			f.wantNoLeftOver(t)
		})
	}
}

func TestCacheReplacesPartialDirectories(t *testing.T) {
	t.Parallel()

	f := newCacheFixture(t, "a whole server")
	home := f.cache.path(f.pin)
	for _, dir := range []string{home + ".partial-123/unpacked", home} { // the latter without its proof
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	got, err := f.cache.ensure(t.Context(), f.pin)
	f.wantWhole(t, got, err)
}

func TestCacheFetchesOnceForConcurrentCallers(t *testing.T) {
	t.Parallel()

	f := newCacheFixture(t, "a whole server")
	var group errgroup.Group
	var unpacked atomic.Int32
	unpack := f.pin.unpack
	f.pin.unpack = func(archive, dir string) error { unpacked.Add(1); return unpack(archive, dir) }
	for range 4 {
		// A cache each, as in processes of their own: only the lock file is shared.
		other := &cache{dir: f.cache.dir, report: newReporter(nil), mvn: f.mvn.run}
		group.Go(func() error {
			_, err := other.ensure(t.Context(), f.pin)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatalf("ensure: got %v, want none", err)
	}
	if got := unpacked.Load(); got != 1 {
		t.Errorf("unpacked: got %d times, want 1", got)
	}
}

func TestCacheWaitEndsWithItsContext(t *testing.T) {
	t.Parallel()

	f := newCacheFixture(t, "a whole server")
	if err := makeReadable(filepath.Join(f.cache.dir, "servers")); err != nil {
		t.Fatal(err)
	}
	unlock, err := lockFile(t.Context(), f.cache.path(f.pin)+".lock", func() {})
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	ctx, cancel := context.WithCancelCause(t.Context())
	stop := errors.New("enough")
	f.cache.report = newReporter(writerFunc(func(line []byte) {
		if bytes.Contains(line, []byte("waiting")) {
			cancel(stop)
		}
	}))
	if _, err := f.cache.ensure(ctx, f.pin); !errors.Is(err, stop) {
		t.Errorf("ensure: got %v, want %v", err, stop)
	}
}

type writerFunc func([]byte)

func (f writerFunc) Write(p []byte) (int, error) { f(p); return len(p), nil }

func TestPins(t *testing.T) {
	t.Parallel()

	for arch, majors := range map[string][]int{"amd64": {14, 15, 16, 17, 18}, "arm64": {16, 17, 18}} {
		for _, major := range majors {
			pin, err := postgresArtifact(major, "linux", arch)
			if err != nil || len(pin.sha256) != 64 || pin.size == 0 || !strings.HasPrefix(pin.name, fmt.Sprint("PostgreSQL ", major, ".")) {
				t.Errorf("linux/%s, %d: got %+v (%v), want a pin", arch, major, pin, err)
			}
		}
	}
	if _, err := postgresArtifact(defaultPostgres, "darwin", "arm64"); err == nil || !strings.Contains(err.Error(), "DATABASE_URL") {
		t.Errorf("darwin: got %v, want what to do instead", err)
	}
	if _, err := postgresArtifact(13, "linux", "arm64"); err == nil || err.Error() != "PostgreSQL 13 is not known to the stack: want one of 16, 17, 18" {
		t.Errorf("an old one: got %v, want those that there are", err)
	}
	for _, tc := range []struct{ elastic, open, file, err string }{
		{"", "", "elasticsearch-8.19.7.zip", ""}, {"9.2.0", "", "elasticsearch-9.2.0.zip", ""}, {"", "2.19.3", "opensearch-2.19.3.zip", ""},
		{"7.10", "", "", "Elasticsearch 7.10 is not known to the stack: want one of Elasticsearch 8.19.7, "}, {"9.2.0", "3.3.0", "", "name one of them"},
	} {
		e, err := searchArtifact(tc.elastic, tc.open)
		if tc.err != "" {
			if err == nil || !strings.Contains(err.Error(), tc.err) {
				t.Errorf("%+v: got %v", tc, err)
			}
		} else if err != nil || e.fileName() != tc.file || len(e.sha256) != 64 || e.open != (tc.open != "") {
			t.Errorf("%+v: got %+v, %v", tc, e, err)
		}
	}
}

func TestRedactHidesThePassword(t *testing.T) {
	t.Parallel()
	if got, want := Redact("postgres://u:secret@h/d"), "postgres://u:xxxxx@h/d"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
