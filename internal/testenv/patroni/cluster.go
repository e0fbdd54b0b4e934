package patroni

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/samuelhu324-dev/weft/internal/testenv/process"
	"github.com/samuelhu324-dev/weft/internal/testenv/stack"
)

const (
	hosts        = 3
	databaseName = "weft_test"

	startBound = 3 * time.Minute
	poll       = 100 * time.Millisecond
	stopGrace  = 30 * time.Second
)

// Options of [Start].
type Options struct {
	Progress    io.Writer // a line per step
	Synchronous bool      // a commit waits for a second member
	// Quick shortens Patroni's times to the least that it takes: ttl 20 s, loop_wait 1 s,
	// retry_timeout 3 s.
	Quick bool
}

// Cluster is a running cluster. Its methods may be called concurrently.
type Cluster struct {
	opts    Options
	dir     string
	tools   tools
	as      *syscall.Credential
	hosts   []*Host
	haproxy *process.Process
	front   int // HAProxy's port
}

// tools are the programs.
type tools struct{ etcd, patroni, haproxy, postgres string }

// find looks in the PATH and where Debian has them, and returns the Debian packages that are
// to be installed.
func find() (t tools, missing []string) {
	for _, tool := range []struct {
		path              *string
		program, package_ string
	}{
		{&t.etcd, "etcd", "etcd-server"}, {&t.patroni, "patroni", "patroni"}, {&t.haproxy, "haproxy", "haproxy"},
	} {
		path, err := exec.LookPath(tool.program)
		if err != nil {
			path, err = exec.LookPath(filepath.Join("/usr/sbin", tool.program))
		}
		if err != nil {
			missing = append(missing, tool.package_)
			continue
		}
		*tool.path = path
	}
	servers, _ := filepath.Glob("/usr/lib/postgresql/*/bin/pg_rewind")
	if len(servers) == 0 {
		return t, append(missing, "postgresql")
	}
	t.postgres = filepath.Dir(servers[len(servers)-1])
	return t, missing
}

// Start returns when the cluster is whole. Canceling ctx stops the start only.
func Start(ctx context.Context, opts Options) (c *Cluster, err error) {
	tools, missing := find()
	if len(missing) > 0 {
		return nil, fmt.Errorf("patroni: install %s (Debian: apt-get install --no-install-recommends %[1]s)", strings.Join(missing, " "))
	}
	c = &Cluster{opts: opts, tools: tools, as: stack.ServerCredential()}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("patroni: %w", err), c.ended(), c.Close())
			c = nil
		}
	}()
	if c.dir, err = c.makeDir("", "weft-patroni-"); err != nil {
		return c, err
	}
	for n := range hosts {
		h, err := c.newHost(fmt.Sprintf("pg%d", n+1))
		if err != nil {
			return c, err
		}
		c.hosts = append(c.hosts, h)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, startBound, fmt.Errorf("cluster %w within %v", process.ErrTimeout, startBound))
	defer cancel()
	began := time.Now()
	var group errgroup.Group
	for _, h := range c.hosts {
		group.Go(func() error { return errors.Join(h.StartEtcd(), h.StartPatroni()) })
	}
	if err := group.Wait(); err != nil {
		return c, err
	}
	if err := c.startHAProxy(); err != nil {
		return c, err
	}
	if err := c.AwaitWhole(ctx); err != nil {
		return c, err
	}
	if err := c.createDatabase(ctx); err != nil {
		return c, err
	}
	if opts.Progress != nil {
		fmt.Fprintf(opts.Progress, "Patroni: three members after %v\n", time.Since(began).Round(100*time.Millisecond))
	}
	return c, nil
}

// ended returns what the programs that have ended had to say, for one that found its port taken.
func (c *Cluster) ended() error {
	var errs []error
	for _, h := range c.hosts {
		for _, p := range []*process.Process{h.etcd, h.patroni} {
			if p != nil && p.HasEnded() {
				errs = append(errs, fmt.Errorf("%s: %w", h.Name, p.EndedError()))
			}
		}
	}
	return errors.Join(errs...)
}

// makeDir makes a directory below the temporary one that belongs to whom the servers run as.
func (c *Cluster) makeDir(in, pattern string) (dir string, err error) {
	if dir, err = os.MkdirTemp(in, pattern); err != nil || c.as == nil {
		return dir, err
	}
	return dir, os.Chown(dir, int(c.as.Uid), int(c.as.Gid))
}

func (c *Cluster) start(h *Host, name string, argv ...string) (*process.Process, error) {
	dir := c.dir
	if h != nil {
		dir = h.dir
	}
	return process.Start(process.Server{
		Name: name, Dir: dir, Log: filepath.Join(dir, name+".log"), Argv: argv, As: c.as, DeathSignal: syscall.SIGTERM, // of which Patroni stops its PostgreSQL
	})
}

func (c *Cluster) createDatabase(ctx context.Context) error {
	primary, err := c.Primary(ctx)
	if err != nil {
		return err
	}
	err = stack.Session(ctx, primary.url("postgres"), func(conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, "create database "+databaseName)
		return err
	})
	if err != nil {
		return err
	}
	// A client gives up when the first member does not know the database.
	for _, h := range c.hosts {
		if err := await(ctx, func(ctx context.Context) error { return stack.Answers(ctx, h.URL()) }); err != nil {
			return err
		}
	}
	return nil
}

// Hosts returns the three hosts.
func (c *Cluster) Hosts() []*Host { return c.hosts }

// Logs are the files that Patroni, with its PostgreSQL, and etcd of each host write, by name.
func (c *Cluster) Logs() map[string]string {
	logs := map[string]string{}
	for _, h := range c.hosts {
		for _, program := range []string{"patroni", "etcd"} {
			logs[program+"-"+h.Name+".log"] = filepath.Join(h.dir, program+".log")
		}
	}
	return logs
}

// URL names the three members and leads to the one that takes writes. Its timeout is for
// applications: with the default of the driver they wait two minutes for a frozen member.
func (c *Cluster) URL() string {
	var addresses []string
	for _, h := range c.hosts {
		addresses = append(addresses, h.address(h.ports.postgres))
	}
	return "postgres://postgres@" + strings.Join(addresses, ",") + "/" + databaseName + "?sslmode=disable&target_session_attrs=read-write&connect_timeout=2"
}

// ProxyURL leads through HAProxy to the member that Patroni calls its primary.
func (c *Cluster) ProxyURL() string {
	return fmt.Sprintf("postgres://postgres@127.0.0.1:%d/%s?sslmode=disable", c.front, databaseName)
}

// Close ends all processes and removes the data.
func (c *Cluster) Close() error {
	var errs []error
	if c.haproxy != nil {
		c.haproxy.Stop(process.Step{Signal: syscall.SIGTERM, Wait: time.Second})
	}
	var group errgroup.Group
	for _, h := range c.hosts {
		group.Go(h.close)
	}
	errs = append(errs, group.Wait())
	if c.dir != "" {
		errs = append(errs, os.RemoveAll(c.dir))
	}
	return errors.Join(errs...)
}
