package stack

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

const (
	fetchTries = 3
	// fetchTimeout bounds one try; the larger server is 98 MB.
	fetchTimeout = 20 * time.Minute
)

// mvnFunc runs mvn in dir and returns what it printed.
type mvnFunc func(ctx context.Context, dir string, args ...string) (output string, err error)

func runMvn(ctx context.Context, dir string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "mvn", args...)
	cmd.Dir = dir // not the caller's, where a pom.xml would take part
	cmd.WaitDelay = 5 * time.Second
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	err := cmd.Run()
	return output.String(), err
}

// fetch copies the artifact into dir with mvn until its checksum is right. It removes a
// wrong copy from the local repository, which keeps truncated downloads; the last try uses
// an empty repository.
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
		repository := c.local
		if try > 1 {
			args = append(args, "-U") // or a failed try is remembered for a day
		}
		if try == fetchTries {
			repository = filepath.Join(dir, "repository")
			args = append(args, "-Dmaven.repo.local="+repository)
		}

		archive := filepath.Join(out, a.fileName())
		c.report.line("%s: fetching %s (%s) with mvn", a.name, a.coordinates, a.megabytes())
		began := time.Now()
		output, err := c.mvnTry(ctx, a, dir, repository, archive, args)
		switch {
		case err != nil:
			last = fmt.Errorf("fetch %s: mvn: %w", a.name, explainMvn(err, output, dir))
			if ctx.Err() != nil {
				return "", context.Cause(ctx)
			}
			if strings.Contains(output, diskFull) || errors.Is(err, exec.ErrNotFound) {
				return "", last
			}
			c.report.line("%s: mvn did not succeed (try %d of %d)", a.name, try, fetchTries)
		default:
			if last = checkArchive(archive, a); last == nil {
				c.report.line("%s: fetched in %.1f s, SHA-256 is right", a.name, time.Since(began).Seconds())
				return archive, nil
			}
			last = fmt.Errorf("fetch %s: %w", a.name, last)
			c.report.line("%v: removed (try %d of %d)", last, try, fetchTries)
			if err := os.RemoveAll(repositoryDir(a, repository)); err != nil {
				c.report.line("%s: local Maven repository: %v", a.name, err)
			}
		}
		if err := os.RemoveAll(out); err != nil {
			return "", fmt.Errorf("fetch %s: %w", a.name, err)
		}
	}
	return "", fmt.Errorf("%w (%d tries)", last, fetchTries)
}

func (c *cache) mvnTry(ctx context.Context, a artifact, dir, repository, archive string, args []string) (string, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, fetchTimeout, fmt.Errorf("not done in %v", fetchTimeout))
	defer cancel()
	stop := c.report.download(a.name, a.size, func() int64 {
		return max(largestFile(filepath.Dir(archive)), largestFile(repositoryDir(a, repository)))
	})
	defer stop()
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

func repositoryDir(a artifact, repository string) string {
	group, id, version, _ := a.parts()
	return filepath.Join(repository, filepath.FromSlash(strings.ReplaceAll(group, ".", "/")), id, version)
}

// localRepository finds mvn's local repository as mvn does: option, settings, default.
func localRepository(getenv func(string) string) string {
	const option = "-Dmaven.repo.local="
	for _, name := range []string{"MAVEN_ARGS", "MAVEN_OPTS"} {
		for _, word := range strings.Fields(getenv(name)) {
			if dir, ok := strings.CutPrefix(word, option); ok {
				return dir
			}
		}
	}
	home := getenv("HOME")
	m2 := filepath.Join(home, ".m2")
	if content, err := os.ReadFile(filepath.Join(m2, "settings.xml")); err == nil {
		var settings struct {
			LocalRepository string `xml:"localRepository"`
		}
		if xml.Unmarshal(content, &settings) == nil && settings.LocalRepository != "" {
			return strings.ReplaceAll(strings.TrimSpace(settings.LocalRepository), "${user.home}", home)
		}
	}
	return filepath.Join(m2, "repository")
}

// largestFile is how far a download has come: mvn writes beside the final name first.
func largestFile(dir string) int64 {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return 0
	}
	var largest int64
	for _, entry := range entries {
		if info, err := entry.Info(); err == nil && info.Mode().IsRegular() {
			largest = max(largest, info.Size())
		}
	}
	return largest
}
