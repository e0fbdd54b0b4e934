package systemd

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
)

const (
	settingsFile = "/etc/weft/weft.yaml"
	urlFile      = "/etc/weft/credentials/database-url"
	exitConfig   = 78
)

// install installs and configures both machines, and makes the tables.
func (r *run) install(ctx context.Context) error {
	g, gctx := errgroup.WithContext(ctx)
	for _, h := range r.hosts {
		g.Go(func() error { return r.installOn(gctx, h) })
	}
	if err := g.Wait(); err != nil {
		return err
	}
	if _, err := r.hosts[0].Exec(ctx, "env", "DATABASE_URL_FILE="+urlFile, "weft", "migrate", "up"); err != nil {
		return err
	}
	if err := r.Record(ctx); err != nil {
		return err
	}
	r.screen.Line("%s is installed on both machines: nothing was started, a start without the URL is refused, and a wrong setting ends in code %d, once",
		filepath.Base(r.older), exitConfig)
	return nil
}

func (r *run) installOn(ctx context.Context, h *host) error {
	if err := h.install(ctx, r.older); err != nil {
		return err
	}
	s, err := h.state(ctx, service)
	if err != nil {
		return err
	}
	if err := expect(s.Active == "inactive" && s.PID == 0, "after the installation the unit is %v", s); err != nil {
		return err
	}
	if out, err := h.Exec(ctx, "systemctl", "is-enabled", service); err == nil {
		return fmt.Errorf("after the installation the unit is %s", out)
	}
	// Not configured.
	if _, err := h.Exec(ctx, "systemctl", "start", service); err == nil || !strings.Contains(err.Error(), "Assertion failed") {
		return fmt.Errorf("start without the database's URL: %w, want a failed assertion", err)
	}
	if err := h.Write(ctx, urlFile, 0o600, strings.NewReader(r.DatabaseURL+"\n")); err != nil {
		return err
	}
	// Configured wrongly.
	if err := h.add(ctx, "\nno_such_setting: 1\n"); err != nil {
		return err
	}
	if _, err := h.Exec(ctx, "systemctl", "start", service); err == nil {
		return fmt.Errorf("start with a wrong setting: none, want an error")
	}
	if s, err = h.state(ctx, service); err != nil {
		return err
	}
	if err := expect(s.Active == "failed" && s.Exited && s.Exit == exitConfig && s.Restarts == 0, "with a wrong setting the unit is %v, exit code %d", s, s.Exit); err != nil {
		return err
	}
	if _, err := h.Exec(ctx, "sed", "-i", "/^no_such_setting/d", settingsFile); err != nil {
		return err
	}
	return h.add(ctx, r.settings+fmt.Sprintf("http:\n  metrics_port: %d\n", h.ports[service]))
}

// add appends to the settings.
func (h *host) add(ctx context.Context, text string) error {
	_, err := h.Exec(ctx, "sh", "-euc", `printf '%s' "$1" >>"$2"`, "sh", text, settingsFile)
	return err
}

// upgrade installs the newer package on both machines and restarts the standby, then the
// leader.
func (r *run) upgrade(ctx context.Context, d *Drill, p pair) error {
	var want []string
	for _, h := range r.hosts {
		before, err := h.state(ctx, service)
		if err != nil {
			return err
		}
		settings, err := h.Exec(ctx, "cat", settingsFile, urlFile)
		if err != nil {
			return err
		}
		if err := h.install(ctx, r.newer); err != nil {
			return err
		}
		after, err := h.state(ctx, service)
		if err != nil {
			return err
		}
		if err := expect(after.PID == before.PID && after.Active == "active", "the upgrade alone has made the unit %v", after); err != nil {
			return err
		}
		kept, err := h.Exec(ctx, "cat", settingsFile, urlFile)
		if err != nil {
			return err
		}
		if err := expect(kept == settings, "the upgrade has changed the configuration of %s", h.Name); err != nil {
			return err
		}
		want = append(want, h.Name)
	}
	if _, err := p.standby.Exec(ctx, "systemctl", "restart", service); err != nil {
		return err
	}
	if _, err := r.back(ctx); err != nil {
		return err
	}
	at := time.Now()
	d.fault(at, p.epoch)
	if _, err := p.leader.Exec(ctx, "systemctl", "restart", service); err != nil {
		return err
	}
	if err := r.Settles(ctx, p.epoch+1); err != nil {
		return err
	}
	if err := r.again(ctx, d, at); err != nil {
		return err
	}
	d.Seen = fmt.Sprintf("%s to %s; what ran was left alone, the configuration kept", r.result.Versions[0], r.result.Versions[1])
	return r.await(ctx, "newer version on both", func(ctx context.Context) error {
		return r.Holds(ctx, `select count(*) = $1 from weft_instance where instance = any($2) and version = $3`, len(want), want, r.result.Versions[1])
	})
}

// remove takes the package off the leader's machine, and then its configuration.
func (r *run) remove(ctx context.Context, d *Drill, p pair) error {
	h := p.leader
	d.fault(time.Now(), p.epoch)
	if _, err := h.Exec(ctx, "apt-get", "remove", "--yes", "weft"); err != nil {
		return err
	}
	if err := r.Settles(ctx, p.epoch+1); err != nil {
		return err
	}
	if _, err := h.Exec(ctx, "test", "-s", settingsFile, "-a", "-s", urlFile); err != nil {
		return fmt.Errorf("removed without purging: %w", err)
	}
	if _, err := h.Exec(ctx, "apt-get", "purge", "--yes", "weft"); err != nil {
		return err
	}
	// The user stays, so that its number passes to nobody else's files.
	left, err := h.Exec(ctx, "sh", "-c", `
for path in /etc/weft /etc/default/weft /usr/bin/weft /usr/lib/systemd/system/weft.service /usr/lib/systemd/system/weft@.service \
	/etc/systemd/system/*.wants/weft*.service /usr/share/doc/weft /usr/share/man/man1/weft*.1.gz; do
	[ ! -e "$path" ] && [ ! -L "$path" ] || echo "$path"
done
getent passwd weft >/dev/null || echo "the user is gone"`)
	if err != nil {
		return err
	}
	d.Seen = "the unit was stopped in order; the purge left nothing but the user"
	return expect(left == "", "after the purge: %s", left)
}
