package stack

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/gofrs/flock"
	"github.com/spf13/pflag"
)

// cache holds unpacked servers, each in a directory that appears whole or not at all.
type cache struct {
	dir    string
	report *reporter
	mvn    mvnFunc
	// One mvn at a time: two would fetch the same plugins into one local repository.
	fetching sync.Mutex
}

// cacheDir returns the directory of fetched programs: weft in the user's cache
// directory. Root's home does not do: the servers run as another user, who cannot enter it.
func cacheDir() (string, error) {
	if os.Geteuid() == 0 {
		return "/var/cache/weft", nil
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("cache directory: %w: set HOME or XDG_CACHE_HOME", err)
	}
	return filepath.Join(dir, "weft"), nil
}

func (c *cache) path(a artifact) string { return filepath.Join(c.dir, "servers", a.dirName()) }

func (c *cache) has(a artifact) bool {
	_, err := os.Stat(filepath.Join(c.path(a), a.proof))
	return err == nil
}

// ensure returns the directory of the unpacked server, fetching it if need be. It waits for another process that
// does so.
func (c *cache) ensure(ctx context.Context, a artifact) (string, error) {
	home := c.path(a)
	if c.has(a) {
		return home, nil
	}
	if err := makeReadable(c.dir, filepath.Dir(home)); err != nil {
		return "", fmt.Errorf("cache directory: %w", explainDisk(err, home))
	}
	unlock, err := lockFile(ctx, home+".lock", func() { c.report.line("%s: waiting for another process that fetches it", a.name) })
	if err != nil {
		return "", fmt.Errorf("lock of the cache: %w", err)
	}
	defer unlock()
	if c.has(a) {
		return home, nil
	}
	return home, c.install(ctx, a, home)
}

// install runs under the lock of the artifact, so a partial directory is that of a process
// that died.
func (c *cache) install(ctx context.Context, a artifact, home string) error {
	leftOver, err := filepath.Glob(home + ".partial-*")
	if err != nil {
		return err
	}
	for _, dir := range append(leftOver, home) {
		if err := os.RemoveAll(dir); err != nil {
			return fmt.Errorf("left-over of a cut fetch: %w", err)
		}
	}
	partial, err := os.MkdirTemp(filepath.Dir(home), filepath.Base(home)+".partial-")
	if err != nil {
		return fmt.Errorf("cache directory: %w", explainDisk(err, home))
	}
	defer func() { _ = os.RemoveAll(partial) }()

	archive, err := c.fetch(ctx, a, partial)
	if err != nil {
		return err
	}
	began := time.Now()
	unpacked := filepath.Join(partial, "unpacked")
	if err := a.unpack(archive, unpacked); err != nil {
		return fmt.Errorf("unpack %s: %w", a.name, explainDisk(err, home))
	}
	if _, err := os.Stat(filepath.Join(unpacked, a.proof)); err != nil {
		return fmt.Errorf("unpack %s: %w", a.name, err)
	}
	// The rename must not reach the disk before the files do.
	if err := syncFilesystem(unpacked); err != nil {
		return fmt.Errorf("unpack %s: %w", a.name, explainDisk(err, home))
	}
	if err := os.Rename(unpacked, home); err != nil {
		return fmt.Errorf("unpack %s: %w", a.name, err)
	}
	c.report.line("%s: unpacked into %s in %.1f s", a.name, home, time.Since(began).Seconds())
	return nil
}

const lockPoll = 100 * time.Millisecond

// lockFile waits for an exclusive lock, calling waiting once if it is held by another.
func lockFile(ctx context.Context, name string, waiting func()) (unlock func(), err error) {
	lock := flock.New(name, flock.SetPermissions(0o644))
	held, err := lock.TryLock()
	if err == nil && !held {
		waiting()
		_, err = lock.TryLockContext(ctx, lockPoll)
	}
	if err != nil {
		return nil, cmp.Or(context.Cause(ctx), err)
	}
	return func() { _ = lock.Unlock() }, nil
}

// makeReadable makes directories that other users can read, whatever the umask.
func makeReadable(dirs ...string) error {
	for _, dir := range dirs {
		if _, err := os.Stat(dir); err == nil {
			continue
		}
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		if err := os.Chmod(dir, 0o755); err != nil {
			return err
		}
	}
	return nil
}

const diskFull = "No space left on device"

func explainDisk(err error, where string) error {
	if err != nil && (errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) || strings.Contains(err.Error(), diskFull)) {
		return fmt.Errorf("%w: the disk of %s is full: free 1 GB and start again", err, where)
	}
	return err
}

// reporter tells people what happens, a line per step. It may be used by several goroutines.
type reporter struct {
	mu  sync.Mutex
	out io.Writer
}

func newReporter(out io.Writer) *reporter {
	if out == nil {
		out = io.Discard
	}
	return &reporter{out: out}
}

// Write implements io.Writer, for whole lines.
func (r *reporter) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.out.Write(p)
}

func (r *reporter) line(format string, args ...any) {
	fmt.Fprintf(r, "stack: "+format+"\n", args...)
}

// artifact is a server as it is published: what to ask mvn for, and what must come back.
type artifact struct {
	name        string // for people
	coordinates string // group:artifact:version:packaging
	sha256      string
	size        int64
	unpack      func(archive, dir string) error
	proof       string // a file that an unpacked server has

	arch string // the processor that it is for; "" for any
	java int    // the oldest JDK that runs it; 0 for none
	open bool   // OpenSearch
}

func (a artifact) parts() (id, version, packaging string) {
	parts := strings.SplitN(a.coordinates, ":", 4) // the first is the group
	return parts[1], parts[2], parts[3]
}

func (a artifact) fileName() string {
	id, version, packaging := a.parts()
	return id + "-" + version + "." + packaging
}

// dirName differs for every pinned content, so a new pin never meets an old cache.
func (a artifact) dirName() string {
	id, version, _ := a.parts()
	return id + "-" + version + "-" + a.sha256[:12]
}

// DefaultElastic and defaultPostgres are what is started unless another version is asked for.
const (
	DefaultElastic  = "8.19.7"
	defaultPostgres = 17

	postgresName = "PostgreSQL " // before a version
)

func artifacts() []artifact {
	search := func(name, version string, java int, sha256 string, size int64) artifact {
		id := strings.ToLower(name)
		return artifact{
			name: name + " " + version, coordinates: "org." + id + ".distribution.integ-test-zip:" + id + ":" + version + ":zip",
			sha256: sha256, size: size, unpack: unpackZip, proof: "bin/" + id, java: java, open: id == "opensearch",
		}
	}
	postgres := func(version, arch, sha256 string, size int64) artifact {
		processor := map[string]string{"amd64": "amd64", "arm64": "arm64v8"}[arch]
		return artifact{
			name: postgresName + version, coordinates: "io.zonky.test.postgres:embedded-postgres-binaries-linux-" + processor + ":" + version + ".0:jar",
			sha256: sha256, size: size, unpack: unpackPostgresJar, proof: "bin/postgres", arch: arch,
		}
	}
	return []artifact{
		search("Elasticsearch", DefaultElastic, 17, "cb7f86fb6e68e85ef6f531ae5c68458ecfe42371150403b22b2ed21381581cbb", 97_670_310),
		search("Elasticsearch", "9.2.0", 21, "bf44938a0490ba2a303d39c9cb64b38963dd08c812ce93e10816e878585bcb6b", 99_253_337),
		search("OpenSearch", "2.19.3", 17, "760530e522de0a9f06380d4a4a43dfd83c31fa8911f41745513ce715ed5dfd03", 51_396_460),
		search("OpenSearch", "3.3.0", 21, "c3a6bf825ea05b8d9fe3758dad70ed198cf9c365700895165d310a0a9e7f48a5", 78_638_524),
		postgres("14.19", "amd64", "8de92fe6d209f864bfae82cb881e416716d139961cc06dbe18629f150a63c71b", 14_506_592),
		postgres("15.14", "amd64", "e8a9d549630362bbf88fa3e8de95b7a6d96bfd367e75db8349e9813eef596fef", 14_588_601),
		postgres("16.10", "amd64", "17a8ded28bde97fe66247387806af30ee26190fc96503c47c3eaa4fcbdcff8b6", 14_723_345),
		postgres("16.10", "arm64", "96e6e62674dfbb2fb16081a05525c0454290e163a8d7ae225512cf60ee908371", 13_708_440),
		postgres("17.6", "amd64", "23da5a044b4fb7a5a081a45008c95749c873305328d73f86aefd56922ce1d29d", 14_894_072),
		postgres("17.6", "arm64", "84427ea54a5238247924ef3b0f940e7d027e58760f19d7325242e50d22fa014a", 13_894_039),
		postgres("18.1", "amd64", "65d0723e0274ad3ec6230dcbdfe034af6ee096fce15a77b0f9b8be71d2702934", 14_949_819),
		postgres("18.1", "arm64", "ea0f16b754fc0a10d9d8993bbd426c20f8c709b318b28e49b42d9cac1c958b8f", 13_966_675),
	}
}

// searchArtifact returns the search server of a version; at most one of the two may be given.
func searchArtifact(elastic, open string) (artifact, error) {
	if elastic != "" && open != "" {
		return artifact{}, errors.New("a version of Elasticsearch and one of OpenSearch: name one of them")
	}
	name := "Elasticsearch " + cmp.Or(elastic, DefaultElastic)
	if open != "" {
		name = "OpenSearch " + open
	}
	return published(name, func(a artifact) (string, bool) { return a.name, a.java > 0 })
}

// postgresArtifact returns the server of a major version for this machine.
func postgresArtifact(major int, goos, goarch string) (artifact, error) {
	if goos != "linux" || goarch != "amd64" && goarch != "arm64" {
		return artifact{}, fmt.Errorf("the stack starts servers on linux/amd64 and linux/arm64 only, not on %s/%s: %s", goos, goarch, useOwnServers)
	}
	return published(postgresName+strconv.Itoa(major), func(a artifact) (string, bool) {
		name, _, _ := strings.Cut(a.name, ".")
		return name, a.arch == goarch
	})
}

// published returns the artifact that has the name among those that fit.
func published(want string, nameOf func(artifact) (name string, fits bool)) (artifact, error) {
	var names []string
	for _, a := range artifacts() {
		name, fits := nameOf(a)
		if fits && name == want {
			return a, nil
		}
		if fits {
			names = append(names, strings.TrimPrefix(name, postgresName))
		}
	}
	return artifact{}, fmt.Errorf("%s is not known to the stack: want one of %s", want, strings.Join(names, ", "))
}

// Versions choose other servers than the default ones; those of the search server exclude
// each other.
type Versions struct {
	PostgresMajor                     int
	ElasticVersion, OpenSearchVersion string
}

// AddFlags adds the flags that choose them.
func (v *Versions) AddFlags(f *pflag.FlagSet) {
	f.IntVar(&v.PostgresMajor, "postgres", 0, fmt.Sprintf("major version of PostgreSQL: 14 to 18 (default %d)", defaultPostgres))
	f.StringVar(&v.ElasticVersion, "elastic", "", "version of Elasticsearch: 8.19.7 or 9.2.0 (default "+DefaultElastic+")")
	f.StringVar(&v.OpenSearchVersion, "opensearch", "", "start OpenSearch instead, 2.19.3 or 3.3.0")
}
