package testenv

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"go.uber.org/goleak"
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
