package stack

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
)

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
