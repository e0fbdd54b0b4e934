package stack

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
)

const (
	// DefaultHeapMB is the Elasticsearch heap where [Options.HeapMB] is 0.
	DefaultHeapMB = 1024
	// NodeHeapMB is the same for each of several nodes.
	NodeHeapMB = 512
	minHeapMB  = 128
)

// Options of [Start]. The zero value starts both servers and says nothing.
type Options struct {
	// Progress gets a line per step.
	Progress io.Writer `json:"-"`
	// DatabaseURL and ElasticURL name servers to use instead of starting one.
	DatabaseURL, ElasticURL string
	Versions
	// ElasticNodes is how many nodes of Elasticsearch are started, as one cluster; 0 means one.
	ElasticNodes int
	// Cables makes [CutOff] possible: each node gets a network of its own, which takes root.
	Cables bool
	// Replication adds a streaming replica of the PostgreSQL that is started.
	Replication Replication
	// Logical has PostgreSQL write what logical decoding reads.
	Logical bool
	// Secured makes the servers that are started ask for TLS and credentials: both must be
	// started here, without a replica.
	Secured bool
	// HeapMB is the heap of each Elasticsearch in MiB, at least 128; 0 means [DefaultHeapMB], or
	// [NodeHeapMB].
	HeapMB int
	// Quick is for servers that live for minutes and are not measured: Elasticsearch's JVM uses the
	// first of its two compilers only, which halves the CPU time of the start and of little work,
	// PostgreSQL does not wait for the disk, and both keep their data in memory where there is enough.
	Quick bool
}

// Stack is a pair of servers that answer. Its methods may be called concurrently.
type Stack struct {
	databaseURL, elasticURL string
	report                  *reporter
	guardian                *guardianClient // nil: both servers are the caller's
	secured                 *Secured        // nil: they ask for nothing
	cabled                  bool
}

// Start returns when both servers answer. The program must begin with [GuardIfAsked]. Canceling ctx stops
// the start only: running servers belong to the Stack until Close, or until this process ends.
func Start(ctx context.Context, opts Options) (*Stack, error) {
	s := &Stack{databaseURL: opts.DatabaseURL, elasticURL: opts.ElasticURL, report: newReporter(opts.Progress), cabled: opts.Cables}
	heap := DefaultHeapMB
	if opts.ElasticNodes > 1 {
		heap = NodeHeapMB
	}
	opts.HeapMB = cmp.Or(opts.HeapMB, heap)
	if err := opts.check(); err != nil {
		return nil, err
	}
	if err := checkExternal(ctx, opts.DatabaseURL, opts.ElasticURL); err != nil {
		return nil, err
	}
	if opts.DatabaseURL != "" && opts.PostgresMajor != 0 || opts.ElasticURL != "" && opts.ElasticVersion+opts.OpenSearchVersion != "" {
		return nil, errors.New("a version is asked for, and DATABASE_URL or ELASTIC_URL names a server that runs: unset it")
	}
	if opts.DatabaseURL != "" && opts.ElasticURL != "" {
		return s, nil
	}
	what, err := provide(ctx, opts, s.report)
	if err != nil {
		return nil, err
	}
	if opts.Secured {
		if s.secured, what.Secured, err = newSecured(); err != nil {
			return nil, err
		}
	}
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("own program: %w", err)
	}
	s.guardian, err = startGuardian(ctx, append([]string{self}, guardianArgs()...), what, s.report)
	if err != nil {
		return nil, err
	}
	s.databaseURL = cmp.Or(s.URL(Postgres), s.databaseURL)
	var nodes []string
	for _, node := range s.ElasticNodes() {
		nodes = append(nodes, s.URL(node))
	}
	s.elasticURL = cmp.Or(strings.Join(nodes, ","), s.elasticURL)
	return s, nil
}

// provide fetches the missing servers and returns what the guardian has to start.
func provide(ctx context.Context, opts Options, report *reporter) (spec, error) {
	who := serverAccount(os.Geteuid())
	opts.PostgresMajor = cmp.Or(opts.PostgresMajor, defaultPostgres)
	what := spec{Options: opts, Account: who}
	postgresPin, err := postgresArtifact(opts.PostgresMajor, runtime.GOOS, runtime.GOARCH)
	if err != nil {
		return spec{}, err
	}
	elasticPin, err := searchArtifact(opts.ElasticVersion, opts.OpenSearchVersion)
	if err != nil {
		return spec{}, err
	}
	what.OpenSearch = elasticPin.open

	dir, err := cacheDir()
	if err != nil {
		return spec{}, err
	}
	servers := &cache{dir: dir, report: report, mvn: runMvn}
	wantPostgres, wantElastic := opts.DatabaseURL == "", opts.ElasticURL == ""
	wantMaven := wantPostgres && !servers.has(postgresPin) || wantElastic && !servers.has(elasticPin)
	java := 0
	if wantElastic {
		java = elasticPin.java
	}
	if what.JavaHome, err = prerequisites(ctx, os.Getenv, java, wantMaven); err != nil {
		return spec{}, err
	}
	roots := []string{os.TempDir(), "/tmp", "/var/tmp"}
	if opts.Quick {
		roots = append(inMemory(), roots...)
	}
	what.DataRoot, err = dataRoot(who, roots...)
	if err != nil {
		return spec{}, err
	}

	group, ctx := errgroup.WithContext(ctx)
	if wantPostgres {
		group.Go(func() (err error) {
			what.PostgresHome, err = servers.ensure(ctx, postgresPin)
			return err
		})
	}
	if wantElastic {
		group.Go(func() (err error) {
			what.ElasticHome, err = servers.ensure(ctx, elasticPin)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return spec{}, err
	}
	for _, home := range []string{what.PostgresHome, what.ElasticHome, what.JavaHome} {
		if home == "" {
			continue
		}
		if err := who.reaches(home); err != nil {
			return spec{}, err
		}
	}
	return what, nil
}

// DatabaseURL is that of the database weft_test, or the caller's own.
func (s *Stack) DatabaseURL() string { return s.databaseURL }

// ElasticURL has no trailing slash, unless it is the caller's own. It names all nodes of a
// cluster, separated by commas.
func (s *Stack) ElasticURL() string { return s.elasticURL }

// PID is the process of the server, for signals: the postmaster or the JVM that serves.
// It changes when the server is started again, and is 0 for a server of the caller's.
func (s *Stack) PID(server Server) int { return s.guardian.last(server).PID }

// Log is the file that the server writes its log to; empty for a server of the caller's.
func (s *Stack) Log(server Server) string {
	if dir := s.guardian.last(server).Dir; dir != "" {
		return filepath.Join(dir, serverLog)
	}
	return ""
}

// Do does something to a server and returns when that is done.
func (s *Stack) Do(ctx context.Context, op Operation, server Server) error {
	return s.ask(ctx, request{Op: op, Server: server})
}

func (s *Stack) ask(ctx context.Context, r request) error {
	if s.guardian == nil {
		return fmt.Errorf("%s %s: the server is not of this stack", r.Op, r.Server)
	}
	if err := s.guardian.call(ctx, "Do", r); err != nil {
		return fmt.Errorf("%s %s: %w", r.Op, r.Server, err)
	}
	return nil
}

// Detach leaves the servers running when this process ends, described in stateFile for
// [Status] and [Down] (empty: stack.json in the user's cache directory, which Up uses).
// Close does nothing afterwards.
func (s *Stack) Detach(ctx context.Context, stateFile string) error {
	if s.guardian == nil {
		return errors.New("detach: no server is of this stack")
	}
	stateFile, err := stateFileOr(stateFile)
	if err != nil {
		return fmt.Errorf("detach: %w", err)
	}
	if err := s.guardian.call(ctx, "Detach", stateFile); err != nil {
		return fmt.Errorf("detach: %w", err)
	}
	return s.guardian.letGo()
}

// Close stops the servers, removes their data and returns when no process is left.
func (s *Stack) Close() error {
	if s.guardian == nil {
		return nil
	}
	return s.guardian.close()
}

// stateFileOr returns the user's one, beside the cached servers, where none is given.
func stateFileOr(given string) (string, error) {
	if given != "" {
		return filepath.Abs(given)
	}
	dir, err := cacheDir()
	if err != nil {
		return "", err
	}
	return filepath.Join(dir, "stack.json"), nil
}

// Homes returns the directories of the unpacked default servers, and fetches what is missing.
// The caller changes nothing in them.
func Homes(ctx context.Context, progress io.Writer) (postgres, elastic string, err error) {
	what, err := provide(ctx, Options{}, newReporter(progress))
	return what.PostgresHome, what.ElasticHome, err
}

const externalBound = 10 * time.Second

// checkExternal verifies that the servers named by the caller answer; an empty URL is none.
func checkExternal(ctx context.Context, databaseURL, elasticURL string) error {
	ctx, cancel := context.WithTimeout(ctx, externalBound)
	defer cancel()
	if databaseURL != "" {
		if err := checkDatabase(ctx, databaseURL); err != nil {
			return fmt.Errorf("DATABASE_URL is set, but no PostgreSQL answers there: %s: correct it, or unset it to have a server started", oneLine(err))
		}
	}
	if elasticURL != "" {
		if _, err := clusterHealth(ctx, elasticURL, nil); err != nil {
			return fmt.Errorf("ELASTIC_URL is set to %s, but no Elasticsearch answers there: %s: correct it, or unset it to have a server started", Redact(elasticURL), oneLine(err))
		}
	}
	return nil
}

func checkDatabase(ctx context.Context, dsn string) error {
	// SQLAlchemy's spelling, which DATABASE_URL may have.
	if scheme, rest, found := strings.Cut(dsn, "://"); found {
		driverless, _, _ := strings.Cut(scheme, "+")
		dsn = driverless + "://" + rest
	}
	return Answers(ctx, dsn)
}

func oneLine(err error) string { return strings.Join(strings.Fields(err.Error()), " ") }

// Redact returns a URL without its password.
func Redact(raw string) string {
	u, err := url.Parse(raw)
	if err != nil {
		return "an unparsable URL"
	}
	return u.Redacted()
}
