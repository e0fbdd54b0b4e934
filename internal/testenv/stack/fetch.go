package stack

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/samuelhu324-dev/weft/internal/testenv/process"
)

const (
	fetchTries = 3
	// fetchTimeout bounds one try; the larger server is 98 MB.
	fetchTimeout = 20 * time.Minute
	fetchTold    = 10 * time.Second // between two lines while it goes on
)

// mvnFunc runs mvn in dir and returns what it printed.
type mvnFunc func(ctx context.Context, dir string, args ...string) (output string, err error)

func runMvn(ctx context.Context, dir string, args ...string) (string, error) {
	return process.Tool{Dir: dir}.Run(ctx, append([]string{"mvn"}, args...)...) // a pom.xml where the caller is would take part
}

// fetch copies the artifact into dir with mvn until its checksum is right. The local repository keeps
// truncated downloads and remembers failures, so all tries but the first have an empty one.
func (c *cache) fetch(ctx context.Context, a artifact, dir string) (string, error) {
	c.fetching.Lock()
	defer c.fetching.Unlock()

	var last error
	for try := 1; try <= fetchTries; try++ {
		if err := ctx.Err(); err != nil {
			return "", context.Cause(ctx)
		}
		out := filepath.Join(dir, fmt.Sprintf("try-%d", try))
		args := []string{
			"-B", "-Dstyle.color=never", "dependency:copy",
			"-Dartifact=" + a.coordinates, "-DoutputDirectory=" + out,
		}
		if try > 1 {
			args = append(args, "-Dmaven.repo.local="+filepath.Join(out, "repository"))
		}
		archive := filepath.Join(out, a.fileName())
		c.report.line("%s: fetching %s (%d MB) with mvn", a.name, a.coordinates, (a.size+500_000)/1_000_000)
		began := time.Now()
		output, err := c.mvnTry(ctx, a.name, dir, args)
		hopeless := strings.Contains(output, diskFull) || errors.Is(err, exec.ErrNotFound)
		if err == nil {
			err = checkArchive(archive, a)
		} else {
			err = fmt.Errorf("mvn: %w", explainMvn(err, output, dir))
		}
		if err == nil {
			c.report.line("%s: fetched in %.1f s, SHA-256 is right", a.name, time.Since(began).Seconds())
			return archive, nil
		}
		last = fmt.Errorf("fetch %s: %w", a.name, err)
		switch {
		case ctx.Err() != nil:
			return "", context.Cause(ctx)
		case hopeless:
			return "", last
		}
		c.report.line("%v (try %d of %d)", last, try, fetchTries)
		if err := os.RemoveAll(out); err != nil {
			return "", fmt.Errorf("fetch %s: %w", a.name, err)
		}
	}
	return "", fmt.Errorf("%w (%d tries)", last, fetchTries)
}

// mvnTry says now and then that it goes on: a download may take minutes.
func (c *cache) mvnTry(ctx context.Context, what, dir string, args []string) (string, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, fetchTimeout, fmt.Errorf("not done in %v", fetchTimeout))
	defer cancel()
	var telling sync.WaitGroup
	defer telling.Wait()
	ended := make(chan struct{})
	defer close(ended)
	began := time.Now()
	telling.Go(func() {
		for ticks := time.Tick(fetchTold); ; {
			select {
			case <-ticks:
				c.report.line("%s: still fetching after %.0f s", what, time.Since(began).Seconds())
			case <-ended:
				return
			}
		}
	})
	return c.mvn(ctx, dir, args...)
}

// explainMvn adds the output of mvn: its exit code says nothing about the cause.
func explainMvn(err error, output, dir string) error {
	if strings.Contains(output, diskFull) {
		return explainDisk(errors.New(diskFull), dir)
	}
	if errors.Is(err, exec.ErrNotFound) {
		return errors.New(needMaven)
	}
	var lines []string
	for line := range strings.Lines(output) {
		if strings.HasPrefix(line, "[ERROR]") || !strings.HasPrefix(line, "[") {
			lines = append(lines, "  "+strings.TrimRight(line, "\n"))
		}
	}
	if len(lines) == 0 {
		return err
	}
	return fmt.Errorf("%w:\n%s", err, strings.Join(lines, "\n"))
}

func checkArchive(name string, a artifact) error {
	file, err := os.Open(name)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	hash := sha256.New()
	size, err := io.Copy(hash, file)
	if err != nil {
		return err
	}
	if got := hex.EncodeToString(hash.Sum(nil)); got != a.sha256 {
		return fmt.Errorf("%s has SHA-256 %s and %d bytes, not the pinned %s and %d bytes: cut, or not the pinned file", a.fileName(), got, size, a.sha256, a.size)
	}
	return nil
}
