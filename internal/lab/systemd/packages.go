package systemd

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/samuelhu324-dev/weft/internal/lab/nspawn"
	"github.com/samuelhu324-dev/weft/internal/lab/rig"
	"github.com/samuelhu324-dev/weft/internal/testenv/process"
)

const (
	buildTimeout   = 15 * time.Minute // cold caches on a slow machine
	installTimeout = 10 * time.Minute
)

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
	apt := process.Tool{Env: []string{"DEBIAN_FRONTEND=noninteractive"}}
	_, err = apt.Run(ctx, "apt-get", "update")
	if err == nil {
		_, err = apt.Run(ctx, append([]string{"apt-get", "install", "-y", "--no-install-recommends"}, nspawn.Packages()...)...)
	}
	if err != nil {
		return fmt.Errorf("install packages: %w", err)
	}
	return nspawn.Check(ctx)
}

// builder is a script of commands.
type builder struct {
	rig.Script
	env []string
}

func (b *builder) run(dir string, argv ...string) string {
	return rig.Try(process.Tool{Dir: dir, Env: b.env}.Run(b.Ctx, argv...)).Must(b)
}

// build makes two packages of this tree, what is changed and not committed included. The
// second one is a commit ahead, and a version.
func build(ctx context.Context, dir string) (older, newer string, err error) {
	ctx, cancel := context.WithTimeout(ctx, buildTimeout)
	defer cancel()
	// As root, in a tree of somebody else.
	b := &builder{env: []string{
		"GIT_CONFIG_COUNT=3", "GIT_CONFIG_KEY_0=safe.directory", "GIT_CONFIG_VALUE_0=*", "GIT_CONFIG_KEY_1=user.name", "GIT_CONFIG_VALUE_1=weft",
		"GIT_CONFIG_KEY_2=user.email", "GIT_CONFIG_VALUE_2=weft@localhost", "GIT_COMMITTER_DATE=" + time.Now().Format(time.RFC3339),
	}}
	err = b.Play(ctx, func() {
		top := strings.TrimSpace(b.run("", "git", "rev-parse", "--show-toplevel"))
		clone := filepath.Join(dir, "source")
		b.run("", "git", "clone", "--quiet", "--no-checkout", top, clone)
		b.run(clone, "git", "read-tree", "HEAD") // else what is tracked and ignored would be left out
		// The clone takes in what the tree has, new files included, and leaves the tree's index alone.
		tree := func(argv ...string) string {
			return b.run(clone, append([]string{"git", "--work-tree=" + top}, argv...)...)
		}
		tree("add", "--all")
		if tree("diff", "--cached", "--name-only") != "" {
			tree("commit", "--quiet", "--message=As it is")
		}
		b.run(clone, "git", "reset", "--quiet", "--hard")
		older = b.one(clone, filepath.Join(dir, "older"))
		b.env = append(b.env, "GIT_COMMITTER_DATE="+time.Now().Add(time.Minute).Format(time.RFC3339))
		b.run(clone, "git", "commit", "--quiet", "--allow-empty", "--message=The next one")
		newer = b.one(clone, filepath.Join(dir, "newer"))
	})
	return older, newer, rig.Wrap("build packages", err)
}

// one builds the package of a tree, and returns its file.
func (b *builder) one(source, into string) string {
	lines := strings.Fields(b.run(source, "deploy/deb/build", into))
	b.Expect(len(lines) > 0, "no package was built")
	return lines[len(lines)-1]
}

// versions returns those of two package files, of which the second must be the newer.
func versions(ctx context.Context, older, newer string) (both []string, err error) {
	for _, file := range []string{older, newer} {
		out, err := process.Tool{}.Run(ctx, "dpkg-deb", "--field", file, "Version")
		if err != nil {
			return nil, fmt.Errorf("package: %w", err)
		}
		both = append(both, strings.TrimSpace(out))
	}
	if _, err := (process.Tool{}).Run(ctx, "dpkg", "--compare-versions", both[1], "gt", both[0]); err != nil {
		return nil, fmt.Errorf("packages: version %s is not newer than %s", both[1], both[0])
	}
	return both, nil
}
