package testenv

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gofrs/flock"
	"go.uber.org/goleak"

	"github.com/samuelhu324-dev/weft/internal/testenv/process"
)

const (
	databaseEnv = "DATABASE_URL"
	elasticEnv  = "ELASTIC_URL"

	howToStart = "start the servers with `make test`, or `go run ./cmd/weftlab stack -- go test ./...`"
)

// Main is the TestMain of a package whose tests need servers: it ends the process
// with code 1 and one line when DATABASE_URL or ELASTIC_URL is not set, and checks
// for leaked goroutines after the tests. With -short the tests that ask for a missing
// server skip instead. opts are passed to goleak; its Cleanup is taken. It does not return.
func Main(m *testing.M, opts ...goleak.Option) {
	flag.Parse()
	if missing := missingServers(os.Getenv); missing != "" && !testing.Short() {
		fmt.Fprintln(os.Stderr, missing)
		os.Exit(1)
	}
	_ = os.Setenv("PGCONNECT_TIMEOUT", "60") // a server that stands still for seconds has not gone
	base := os.Getenv(databaseEnv)
	goleak.VerifyTestMain(m, append(opts, goleak.Cleanup(func(code int) {
		if base == "" {
			os.Exit(code)
		}
		if err := dropTemplates(base); err != nil {
			fmt.Fprintf(os.Stderr, "testenv: drop templates: %v\n", err)
			code = max(code, 1)
		}
		os.Exit(code)
	}))...)
}

// MainNoServers is the TestMain of a package whose tests need no servers: it only
// checks for leaked goroutines. It does not return.
func MainNoServers(m *testing.M, opts ...goleak.Option) {
	goleak.VerifyTestMain(m, opts...)
}

func missingServers(getenv func(string) string) string {
	var unset []string
	for _, name := range []string{databaseEnv, elasticEnv} {
		if getenv(name) == "" {
			unset = append(unset, name)
		}
	}
	switch len(unset) {
	case 0:
		return ""
	case 1:
		return fmt.Sprintf("testenv: %s is not set: %s", unset[0], howToStart)
	default:
		return fmt.Sprintf("testenv: %s are not set: %s", strings.Join(unset, " and "), howToStart)
	}
}

func server(t testing.TB, name string) string {
	t.Helper()
	value := os.Getenv(name)
	if value == "" && testing.Short() {
		t.Skipf("needs a server: %s is not set", name)
	}
	if value == "" {
		t.Fatalf("testenv: %s is not set: %s", name, howToStart)
	}
	return value
}

// must fails a test for which noun cannot be had.
func must(t testing.TB, noun string, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("testenv: %s: %v", noun, err)
	}
}

const longEnv = "WEFT_TEST_LONG"

// Volume returns ordinary, or long where WEFT_TEST_LONG is set, as `make test-long` does
// every night: the same assertions hold for both.
func Volume(ordinary, long int) int {
	if os.Getenv(longEnv) != "" {
		return long
	}
	return ordinary
}

// buildTimeout is for cold caches on a slow machine.
const buildTimeout = 10 * time.Minute

// Program returns the path of weft or weftlab, built from this tree. All test processes
// of one tree share the binary, so that only the first one that asks links it; no test
// may change it.
func Program(t testing.TB, name string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), buildTimeout)
	defer cancel()
	binary, err := program(ctx, name)
	must(t, "build "+name, err)
	return binary
}

func program(ctx context.Context, name string) (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	gomod, err := process.Go(ctx, "env", "GOMOD")
	if err != nil {
		return "", err
	}
	tree := sha256.Sum256([]byte(gomod))
	dir := filepath.Join(cache, "weft", "test-programs", hex.EncodeToString(tree[:6]))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	lock := flock.New(filepath.Join(dir, "lock"))
	if err := lock.Lock(); err != nil {
		return "", err
	}
	defer func() { _ = lock.Close() }()
	binary := filepath.Join(dir, name)
	// With the name of an existing binary, go build does nothing when that one is up to date.
	compiler := process.Tool{Dir: filepath.Dir(gomod), Env: []string{"CGO_ENABLED=0"}}
	_, err = compiler.Run(ctx, "go", "build", "-o", binary, "./cmd/"+name)
	return binary, err
}
