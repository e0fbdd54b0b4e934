package stack

import (
	"archive/tar"
	"archive/zip"
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/ulikunitz/xz"

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
	if wantMaven && onPath("mvn", getenv("PATH")) == "" {
		missing = append(missing, needMaven)
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

// unpackZip unpacks a zip whose entries all lie under one top directory into dir,
// without that directory.
func unpackZip(archive, dir string) error {
	reader, err := zip.OpenReader(archive)
	if err != nil {
		return err
	}
	defer func() { _ = reader.Close() }()
	return inTree(dir, func(t *tree) error {
		for _, entry := range reader.File {
			_, name, found := strings.Cut(entry.Name, "/")
			if !found {
				return fmt.Errorf("%s: lies beside the top directory", entry.Name)
			}
			content, err := entry.Open()
			if err != nil {
				return fmt.Errorf("%s: %w", entry.Name, err)
			}
			err = t.add(path.Clean(name), entry.Mode(), content)
			if err = errors.Join(err, content.Close()); err != nil {
				return fmt.Errorf("%s: %w", entry.Name, err)
			}
		}
		return nil
	})
}

// unpackPostgresJar unpacks the one .txz in the jar.
func unpackPostgresJar(archive, dir string) error {
	reader, err := zip.OpenReader(archive)
	if err != nil {
		return err
	}
	defer func() { _ = reader.Close() }()
	for _, entry := range reader.File {
		if path.Ext(entry.Name) != ".txz" {
			continue
		}
		content, err := entry.Open()
		if err != nil {
			return err
		}
		defer func() { _ = content.Close() }()
		return unpackTarXZ(content, dir)
	}
	return errors.New("no .txz in it")
}

func unpackTarXZ(r io.Reader, dir string) error {
	plain, err := xz.NewReader(bufio.NewReaderSize(r, 1<<16))
	if err != nil {
		return err
	}
	entries := tar.NewReader(plain)
	return inTree(dir, func(t *tree) error {
		for {
			header, err := entries.Next()
			if errors.Is(err, io.EOF) {
				return nil
			}
			if err != nil {
				return err
			}
			mode, content := header.FileInfo().Mode(), io.Reader(entries)
			if mode.Type() == fs.ModeSymlink {
				content = strings.NewReader(header.Linkname)
			}
			if err := t.add(path.Clean(header.Name), mode, content); err != nil {
				return fmt.Errorf("%s: %w", header.Name, err)
			}
		}
	})
}

var errEscapes = errors.New("leads out of the directory it is unpacked into")

// tree writes into one directory and nowhere else, whatever the names say.
type tree struct{ root *os.Root }

// inTree makes dir and has fill write into it. As root, another user must be able to read
// the result, so the umask does not count.
func inTree(dir string, fill func(*tree) error) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	if err := fill(&tree{root}); err != nil {
		return err
	}
	return fs.WalkDir(root.FS(), ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.IsDir() {
			return err
		}
		return root.Chmod(name, 0o755)
	})
}

// add writes an entry of an archive. The content of a symbolic link is its target.
func (t *tree) add(name string, mode fs.FileMode, content io.Reader) error {
	if !filepath.IsLocal(name) {
		return errEscapes
	}
	if mode.IsDir() {
		return t.root.MkdirAll(name, 0o755)
	}
	if err := t.root.MkdirAll(path.Dir(name), 0o755); err != nil {
		return err
	}
	switch {
	case mode.IsRegular():
		return t.file(name, mode, content)
	case mode.Type() == fs.ModeSymlink:
		target, err := io.ReadAll(io.LimitReader(content, 4096))
		if err != nil {
			return err
		}
		if to := string(target); path.IsAbs(to) || !filepath.IsLocal(path.Join(path.Dir(name), to)) {
			return errEscapes
		}
		return t.root.Symlink(string(target), name)
	default:
		return fmt.Errorf("entry of kind %v", mode.Type())
	}
}

func (t *tree) file(name string, mode fs.FileMode, content io.Reader) error {
	file, err := t.root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(file, content)
	if err == nil {
		err = file.Chmod(mode.Perm() | 0o444)
	}
	return errors.Join(err, file.Close())
}
