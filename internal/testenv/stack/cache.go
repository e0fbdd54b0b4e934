package stack

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/gofrs/flock"
)

// cache holds unpacked servers, each in a directory that appears whole or not at all.
type cache struct {
	dir    string
	report *reporter
	mvn    mvnFunc
	// One mvn at a time: two would fetch the same plugins into one local repository.
	fetching sync.Mutex
}

// CacheDir returns the directory of fetched and built programs: weft in the user's cache
// directory. Root's home does not do: the servers run as another user, who cannot enter it.
func CacheDir() (string, error) {
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

// ensure returns the directory of the unpacked server, fetching it if need be.
func (c *cache) ensure(ctx context.Context, a artifact) (string, error) {
	home := c.path(a)
	waiting := func() { c.report.line("%s: waiting for another process that fetches it", a.name) }
	return home, Once(ctx, home, a.proof, waiting, func() error { return c.install(ctx, a, home) })
}

// Once makes something in a cache directory, unless its proof, a file below it, or where that is
// empty path itself, is there. It waits
// for another process that does so, and calls waiting first.
func Once(ctx context.Context, path, proof string, waiting func(), install func() error) error {
	there := func() bool {
		_, err := os.Stat(filepath.Join(path, proof))
		return err == nil
	}
	if there() {
		return nil
	}
	dir := filepath.Dir(path)
	if err := makeReadable(filepath.Dir(dir), dir); err != nil {
		return fmt.Errorf("cache directory: %w", explainDisk(err, dir))
	}
	unlock, err := lockFile(ctx, path+".lock", waiting)
	if err != nil {
		return fmt.Errorf("lock of the cache: %w", err)
	}
	defer unlock()
	if there() {
		return nil
	}
	return install()
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
