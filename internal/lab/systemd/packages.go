package systemd

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

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

const (
	settingsFile = "/etc/weft/weft.yaml"
	urlFile      = "/etc/weft/credentials/database-url"
	exitConfig   = 78
)

// install installs and configures both machines, and makes the tables.
func (r *run) install() {
	g, ctx := errgroup.WithContext(r.Ctx)
	for _, h := range r.hosts {
		g.Go(func() error { return r.installOn(ctx, h) })
	}
	r.Must(g.Wait())
	r.exec(r.hosts[0], "env", "DATABASE_URL_FILE="+urlFile, "weft", "migrate", "up")
	r.Must(r.Record(r.Ctx))
	r.screen.Line("%s is installed on both machines: nothing was started, a start without the URL is refused, and a wrong setting ends in code %d, once",
		filepath.Base(r.older), exitConfig)
}

func (r *run) installOn(ctx context.Context, h *host) error {
	s := new(rig.Script) // of this machine: the other one has its own
	return s.Play(ctx, func() {
		s.Must(h.install(ctx, r.older))
		unit := rig.Try(h.state(ctx, service)).Must(s)
		s.Expect(unit.Active == "inactive" && unit.PID == 0, "after the installation the unit is %v", unit)
		out, err := h.Exec(ctx, "systemctl", "is-enabled", service)
		s.Expect(err != nil, "after the installation the unit is %s", out)
		// Not configured.
		_, err = h.Exec(ctx, "systemctl", "start", service)
		s.Expect(err != nil && strings.Contains(err.Error(), "Assertion failed"), "start without the database's URL: %w, want a failed assertion", err)
		s.Must(h.Write(ctx, urlFile, 0o600, strings.NewReader(r.DatabaseURL+"\n")))
		// Configured wrongly.
		s.Must(h.add(ctx, "\nno_such_setting: 1\n"))
		_, err = h.Exec(ctx, "systemctl", "start", service)
		s.Expect(err != nil, "start with a wrong setting: none, want an error")
		unit = rig.Try(h.state(ctx, service)).Must(s)
		s.Expect(unit.Active == "failed" && unit.Exited && unit.Exit == exitConfig && unit.Restarts == 0, "with a wrong setting the unit is %v, exit code %d", unit, unit.Exit)
		rig.Try(h.Exec(ctx, "sed", "-i", "/^no_such_setting/d", settingsFile)).Must(s)
		s.Must(h.add(ctx, r.settings+fmt.Sprintf("http:\n  metrics_port: %d\n", h.ports[service])))
	})
}

func (h *host) add(ctx context.Context, text string) error {
	_, err := h.Exec(ctx, "sh", "-euc", `printf '%s' "$1" >>"$2"`, "sh", text, settingsFile)
	return err
}

// upgrade installs the newer package on both machines and restarts the standby, then the
// leader.
func (r *run) upgrade(d *Drill, p pair) {
	var want []string
	for _, h := range r.hosts {
		before, settings := r.state(h), r.exec(h, "cat", settingsFile, urlFile)
		r.Must(h.install(r.Ctx, r.newer))
		after, kept := r.state(h), r.exec(h, "cat", settingsFile, urlFile)
		r.Expect(after.PID == before.PID && after.Active == "active", "the upgrade alone has made the unit %v", after)
		r.Expect(kept == settings, "the upgrade has changed the configuration of %s", h.Name)
		want = append(want, h.Name)
	}
	r.exec(p.standby, "systemctl", "restart", service)
	r.back()
	at := time.Now()
	d.fault(at, p.epoch)
	r.exec(p.leader, "systemctl", "restart", service)
	r.settles(p.epoch + 1)
	r.again(d, at)
	d.Seen = fmt.Sprintf("%s to %s; what ran was left alone, the configuration kept", r.result.Versions[0], r.result.Versions[1])
	r.await("newer version on both", func(ctx context.Context) error {
		return r.Holds(ctx, `select count(*) = $1 from weft_instance where instance = any($2) and version = $3`, len(want), want, r.result.Versions[1])
	})
}

// remove takes the package off the leader's machine, and then its configuration.
func (r *run) remove(d *Drill, p pair) {
	h := p.leader
	d.fault(time.Now(), p.epoch)
	r.exec(h, "apt-get", "remove", "--yes", "weft")
	r.settles(p.epoch + 1)
	rig.Try(h.Exec(r.Ctx, "test", "-s", settingsFile, "-a", "-s", urlFile)).MustDo(r, "removed without purging")
	r.exec(h, "apt-get", "purge", "--yes", "weft")
	// The user stays, so that its number passes to nobody else's files.
	left := r.exec(h, "sh", "-c", `
for path in /etc/weft /etc/default/weft /usr/bin/weft /usr/lib/systemd/system/weft.service /usr/lib/systemd/system/weft@.service \
	/etc/systemd/system/*.wants/weft*.service /usr/share/doc/weft /usr/share/man/man1/weft*.1.gz; do
	[ ! -e "$path" ] && [ ! -L "$path" ] || echo "$path"
done
getent passwd weft >/dev/null || echo "the user is gone"`)
	d.Seen = "the unit was stopped in order; the purge left nothing but the user"
	r.Expect(left == "", "after the purge: %s", left)
}
