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
	"regexp"
	"strconv"
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

const (
	useOwnServers = "set DATABASE_URL and ELASTIC_URL to servers that run"
	needMaven     = "no mvn on the PATH"
	howToInstall  = "install it (Debian, Ubuntu: apt install default-jdk-headless maven; Fedora: dnf install java-21-openjdk-headless maven), or " + useOwnServers
)

// prerequisites looks for mvn, which fetches the servers, and for a JDK of a version or a newer
// one, which runs one; 0 for none. The error names everything that is missing, in one line.
func prerequisites(ctx context.Context, getenv func(string) string, java int, wantMaven bool) (javaHome string, err error) {
	var missing []string
	if java > 0 {
		javaHome, err = findJava(ctx, getenv, java)
		if err != nil {
			missing = append(missing, err.Error())
		}
	}
	if wantMaven {
		if onPath("mvn", getenv("PATH")) == "" {
			missing = append(missing, needMaven)
		}
	}
	if len(missing) > 0 {
		return "", fmt.Errorf("%s: %s", strings.Join(missing, " and "), howToInstall)
	}
	return javaHome, nil
}

// findJava returns the home of the first JDK that is new enough, with links resolved.
func findJava(ctx context.Context, getenv func(string) string, oldest int) (home string, err error) {
	var candidates []string
	for _, name := range []string{"ES_JAVA_HOME", "JAVA_HOME"} {
		if home := getenv(name); home != "" {
			candidates = append(candidates, filepath.Join(home, "bin", "java"))
		}
	}
	if java := onPath("java", getenv("PATH")); java != "" {
		candidates = append(candidates, java)
	}

	var tooOld string
	for _, candidate := range candidates {
		home, version, err := askJava(ctx, candidate)
		if err != nil {
			continue
		}
		if version >= oldest {
			return home, nil
		}
		tooOld = fmt.Sprintf(" (%s is %d)", home, version)
	}
	return "", fmt.Errorf("no JDK %d or newer on the PATH or in JAVA_HOME%s", oldest, tooOld)
}

// onPath returns the first executable file of that name, or nothing.
func onPath(name, path string) string {
	for _, dir := range filepath.SplitList(path) {
		file := filepath.Join(dir, name)
		if info, err := os.Stat(file); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return file
		}
	}
	return ""
}

// askJava asks the JVM itself: the java on the PATH is often a link or a version manager's script.
func askJava(ctx context.Context, java string) (home string, version int, err error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	output, err := exec.CommandContext(ctx, java, "-XshowSettings:properties", "-version").CombinedOutput()
	if err != nil {
		return "", 0, err
	}
	return parseJavaSettings(string(output))
}

func parseJavaSettings(output string) (home string, version int, err error) {
	property := func(name string) string {
		found := regexp.MustCompile(`(?m)^\s*` + regexp.QuoteMeta(name) + ` = (.*?)\s*$`).FindStringSubmatch(output)
		if found == nil {
			return ""
		}
		return found[1]
	}
	home = property("java.home")
	// Up to Java 8 it was 1.8.
	version, err = strconv.Atoi(strings.TrimPrefix(property("java.specification.version"), "1."))
	if err != nil || home == "" {
		return "", 0, errors.New("java does not say its home and version")
	}
	if resolved, err := filepath.EvalSymlinks(home); err == nil {
		home = resolved
	}
	return home, version, nil
}
