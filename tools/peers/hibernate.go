package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
)

// hibernate is Hibernate Search in an application of its own: the ORM writes the events.
type hibernate struct {
	*site
	home string // of the Java project
}

func (h *hibernate) about() about {
	return about{
		name: "Hibernate Search", prefix: "peers-hibernate", index: "peers-hibernate-read", backlog: "rows by the ORM, which writes an event for each; nobody carries them yet",
		settled: "its table of events is empty", standby: "none stands by: two instances share the events, and the other takes over the half of the one that is struck",
	}
}

func (h *hibernate) settings() []string {
	return []string{
		"hibernate.search.coordination.strategy=outbox-polling",
		"hibernate.search.coordination.event_processor.batch_size=1000",
		"hibernate.search.coordination.event_processor.polling_interval=50",
		"hibernate.search.backend.indexing.max_bulk_size=500",
		"hibernate.search.backend.indexing.queue_size=5000",
		"hibernate.jdbc.batch_size=100",
		"hibernate.order_inserts=true",
		"hibernate.default_batch_fetch_size=100",
	}
}

func (h *hibernate) prepare(ctx context.Context) (string, error) {
	h.home = filepath.Join(h.source, "hibernate")
	if _, err := run(ctx, h.home, nil, "mvn", "-q", "-B", "compile", "dependency:copy-dependencies",
		"-DincludeScope=runtime", "-DoutputDirectory=target/lib"); err != nil {
		return "", err
	}
	jars, err := filepath.Glob(filepath.Join(h.home, "target/lib/hibernate-*.jar"))
	var versions []string
	for _, name := range []string{"search-mapper-orm-outbox-polling", "core"} {
		for _, jar := range jars {
			if rest, ok := strings.CutPrefix(filepath.Base(jar), "hibernate-"+name+"-"); ok {
				versions = append(versions, name+" "+strings.TrimSuffix(rest, ".jar"))
			}
		}
	}
	return strings.Join(versions, ", "), err
}

func (h *hibernate) command(db *database, args ...string) (argv, env []string, err error) {
	host := strings.TrimPrefix(h.elastic.url, "http://")
	lines := append(h.settings(),
		"hibernate.search.backend.hosts="+host,
		"hibernate.search.backend.version="+h.version,
		"hibernate.search.backend.version_check.enabled=false",
		"hibernate.hikari.maximumPoolSize=10",
		"hibernate.hbm2ddl.auto=update",
		"jakarta.persistence.jdbc.url=jdbc:postgresql://127.0.0.1:"+strconv.Itoa(db.port)+"/"+db.name,
		"jakarta.persistence.jdbc.user=postgres",
		"jakarta.persistence.jdbc.password=",
	)
	file := filepath.Join(h.dir, db.name+".properties")
	err = os.WriteFile(file, []byte(strings.Join(lines, "\n")+"\n"), 0o644)
	classes := filepath.Join(h.home, "target/classes") + ":" + filepath.Join(h.home, "target/lib/*")
	return append([]string{"java", "-Xmx1g", "-cp", classes, "weft.peers.Application"}, args...), []string{"SETTINGS=" + file}, err
}

func (h *hibernate) fill(ctx context.Context, db *database, n int) error {
	argv, env, err := h.command(db, "fill", strconv.Itoa(n))
	if err != nil {
		return err
	}
	_, err = run(ctx, h.dir, env, argv...)
	return err
}

func (h *hibernate) start(_ context.Context, db *database, name string) (*program, error) {
	argv, env, err := h.command(db, "run")
	if err != nil {
		return nil, err
	}
	return start(command{name: name, dir: h.dir, log: h.log(db.name + "-" + name), argv: argv, env: env})
}

func (h *hibernate) settled(ctx context.Context, db *database) (bool, error) {
	return db.none(ctx, "select count(*) from hsearch_outbox_event")
}

func (h *hibernate) ready(ctx context.Context, db *database, instances int) (bool, error) {
	return db.none(ctx, fmt.Sprintf("select %d - count(*) from hsearch_agent where state = 'RUNNING'", instances))
}

func (h *hibernate) active(context.Context, *database) (string, error) { return "a", nil }

// write lets the application write, and reads the ids that it prints.
func (h *hibernate) write(ctx context.Context, db *database, first int64, committed func(int64)) error {
	runtime.LockOSThread() // the kernel ends the writer when the thread that forked ends
	defer runtime.UnlockOSThread()
	argv, env, err := h.command(db, "write", strconv.FormatInt(first, 10))
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env, cmd.SysProcAttr = append(os.Environ(), env...), &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return cmd.Process.Kill() }
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if id, err := strconv.ParseInt(lines.Text(), 10, 64); err == nil {
			committed(id)
		}
	}
	return cmd.Wait()
}
