package systemd

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/samuelhu324-dev/weft/internal/lab/nspawn"
)

const (
	buildTimeout   = 15 * time.Minute // cold caches on a slow machine
	installTimeout = 10 * time.Minute
)

// tool runs a command of this machine and returns its standard output.
func tool(ctx context.Context, dir string, stdin []byte, env []string, argv ...string) (string, error) {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Dir, cmd.Env, cmd.Stdin = dir, append(os.Environ(), env...), bytes.NewReader(stdin)
	cmd.WaitDelay = time.Second
	var out, diagnosis bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &diagnosis
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s: %w\n%s", strings.Join(argv, " "), cmp.Or(context.Cause(ctx), err), bytes.TrimSpace(diagnosis.Bytes()))
	}
	return out.String(), nil
}

// provide installs what Debian has of what is missing.
func provide(ctx context.Context, say func(string, ...any)) error {
	err := nspawn.Check(ctx)
	if err == nil || errors.Is(err, nspawn.ErrImpossible) {
		return err
	}
	if _, missing := exec.LookPath("apt-get"); missing != nil {
		return err
	}
	say("%v; installing %s", err, strings.Join(nspawn.Packages(), ", "))
	ctx, cancel := context.WithTimeout(ctx, installTimeout)
	defer cancel()
	env := []string{"DEBIAN_FRONTEND=noninteractive"}
	if _, err := tool(ctx, "", nil, env, "apt-get", "update"); err != nil {
		return fmt.Errorf("install packages: %w", err)
	}
	if _, err := tool(ctx, "", nil, env, append([]string{"apt-get", "install", "-y", "--no-install-recommends"}, nspawn.Packages()...)...); err != nil {
		return fmt.Errorf("install packages: %w", err)
	}
	return nspawn.Check(ctx)
}

// build makes two packages of this tree, what is changed and not committed included. The
// second one is a commit ahead, and a version.
func build(ctx context.Context, dir string) (older, newer string, err error) {
	ctx, cancel := context.WithTimeout(ctx, buildTimeout)
	defer cancel()
	// As root, in a tree of somebody else.
	env := []string{
		"GIT_CONFIG_COUNT=3", "GIT_CONFIG_KEY_0=safe.directory", "GIT_CONFIG_VALUE_0=*", "GIT_CONFIG_KEY_1=user.name", "GIT_CONFIG_VALUE_1=weft",
		"GIT_CONFIG_KEY_2=user.email", "GIT_CONFIG_VALUE_2=weft@localhost", "GIT_COMMITTER_DATE=" + time.Now().Format(time.RFC3339),
	}
	top, err := tool(ctx, "", nil, env, "git", "rev-parse", "--show-toplevel")
	if err != nil {
		return "", "", fmt.Errorf("build packages: %w", err)
	}
	top = strings.TrimSpace(top)
	clone := filepath.Join(dir, "source")
	if _, err = tool(ctx, "", nil, env, "git", "clone", "--quiet", top, clone); err != nil {
		return "", "", fmt.Errorf("build packages: %w", err)
	}
	changes, err := uncommitted(ctx, top, filepath.Join(dir, "index"), env)
	if err != nil {
		return "", "", err
	}
	if changes != "" {
		if _, err = tool(ctx, clone, []byte(changes), env, "git", "apply", "--index"); err == nil {
			_, err = tool(ctx, clone, nil, env, "git", "commit", "--quiet", "--message=As it is")
		}
		if err != nil {
			return "", "", fmt.Errorf("build packages: %w", err)
		}
	}
	if older, err = buildOne(ctx, clone, filepath.Join(dir, "older"), env); err != nil {
		return "", "", err
	}
	env = append(env, "GIT_COMMITTER_DATE="+time.Now().Add(time.Minute).Format(time.RFC3339))
	if _, err = tool(ctx, clone, nil, env, "git", "commit", "--quiet", "--allow-empty", "--message=The next one"); err != nil {
		return "", "", fmt.Errorf("build packages: %w", err)
	}
	newer, err = buildOne(ctx, clone, filepath.Join(dir, "newer"), env)
	return older, newer, err
}

// uncommitted returns what the tree has more than its newest commit, new files included. It
// works on an index of its own.
func uncommitted(ctx context.Context, top, index string, env []string) (changes string, err error) {
	env = append(env, "GIT_INDEX_FILE="+index)
	for _, args := range [][]string{{"read-tree", "HEAD"}, {"add", "--all", "--intent-to-add"}, {"diff", "--binary", "HEAD"}} {
		if changes, err = tool(ctx, top, nil, env, append([]string{"git"}, args...)...); err != nil {
			return "", fmt.Errorf("build packages: %w", err)
		}
	}
	return changes, nil
}

func buildOne(ctx context.Context, source, into string, env []string) (string, error) {
	out, err := tool(ctx, source, nil, env, "deploy/deb/build", into)
	if err != nil {
		return "", fmt.Errorf("build packages: %w", err)
	}
	lines := strings.Fields(out)
	if len(lines) == 0 {
		return "", errors.New("build packages: no package was built")
	}
	return lines[len(lines)-1], nil
}

// versions returns those of two package files, of which the second must be the newer.
func versions(ctx context.Context, older, newer string) (both []string, err error) {
	for _, file := range []string{older, newer} {
		out, err := tool(ctx, "", nil, nil, "dpkg-deb", "--field", file, "Version")
		if err != nil {
			return nil, fmt.Errorf("package: %w", err)
		}
		both = append(both, strings.TrimSpace(out))
	}
	if _, err := tool(ctx, "", nil, nil, "dpkg", "--compare-versions", both[1], "gt", both[0]); err != nil {
		return nil, fmt.Errorf("packages: version %s is not newer than %s", both[1], both[0])
	}
	return both, nil
}
