package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// pollTimeout is shorter, as PGSync's documentation advises for throughput, than the time between
// two rows of the writer: PGSync hands on what it was notified of after such a pause, or with 500
// rows. With its default of 0.1 s it would wait for 500.
const pollTimeout = "POLL_TIMEOUT=0.01"

// pgsync is a daemon in Python: triggers notify it, and it keeps what is to be done in Redis.
type pgsync struct {
	*site
	venv  string
	redis *program
	front *front
	port  int
}

func (p *pgsync) about() about {
	return about{
		name: "PGSync", prefix: "peers-pgsync", index: "peers-pgsync", backlog: "rows by SQL before `bootstrap`; its first pass reads the table",
		settled: "it has written its checkpoint",
	}
}

func (p *pgsync) settings() []string {
	return []string{
		"bootstrap, then pgsync --daemon", pollTimeout,
		"else all defaults (QUERY_CHUNK_SIZE=10000, REDIS_WRITE_CHUNK_SIZE=500, ELASTICSEARCH_CHUNK_SIZE=5000, ELASTICSEARCH_THREAD_COUNT=4, NUM_WORKERS=2)",
		"mapping given in schema.json", "redis-server --save '' --appendonly no", "one hop to Elasticsearch more than the others: its client needs GET /, which the stack's build lacks",
	}
}

// prepare installs PGSync where it stays for the next run, and starts a Redis.
func (p *pgsync) prepare(ctx context.Context) (string, error) {
	p.venv = filepath.Join(p.source, "target", "venv")
	if _, err := os.Stat(filepath.Join(p.venv, "bin", "pgsync")); err != nil {
		if _, err := run(ctx, p.source, nil, "python3", "-m", "venv", p.venv); err != nil {
			return "", err
		}
		if _, err := run(ctx, p.source, nil, p.bin("pip"), "install", "-q", "-r", "requirements.txt"); err != nil {
			return "", err
		}
	}
	version, err := run(ctx, p.source, nil, p.bin("python"), "-c",
		"from importlib.metadata import version; print(version('pgsync'), 'with Elasticsearch client', version('elasticsearch'))")
	if err != nil {
		return "", err
	}
	redis, err := run(ctx, p.source, nil, "redis-server", "--version")
	if err != nil {
		return "", err
	}
	if p.front, err = openFront(ctx, p.elastic.url, p.site.version); err != nil {
		return "", err
	}
	if p.port, err = freePort(); err != nil {
		return "", err
	}
	p.redis, err = start(command{
		name: "redis", dir: p.dir, log: p.log("redis"),
		argv: []string{"redis-server", "--bind", "127.0.0.1", "--port", strconv.Itoa(p.port), "--save", "", "--appendonly", "no"},
	})
	fields := strings.Fields(redis)
	return fmt.Sprintf("%s, Redis %s", version, strings.TrimPrefix(fields[min(2, len(fields)-1)], "v=")), err
}

func (p *pgsync) close() error {
	err := p.redis.stop(syscall.SIGTERM)
	if p.front != nil {
		err = errors.Join(err, p.front.close())
	}
	return err
}

func (p *pgsync) bin(name string) string { return filepath.Join(p.venv, "bin", name) }

func (p *pgsync) env(db *database) []string {
	return []string{
		"PG_URL=postgresql://postgres@127.0.0.1:" + strconv.Itoa(db.port) + "/" + db.name, "PG_USER=postgres",
		"PG_HOST=127.0.0.1", "PG_PORT=" + strconv.Itoa(db.port), "PG_DATABASE=" + db.name, "ELASTICSEARCH=true", "ELASTICSEARCH_URL=" + p.front.url,
		"REDIS_HOST=127.0.0.1", "REDIS_PORT=" + strconv.Itoa(p.port), "CHECKPOINT_PATH=" + p.dir, "SCHEMA=" + p.schema(db),
		pollTimeout, "GENERAL_LOGGING_LEVEL=WARNING", "PATH=" + filepath.Join(p.venv, "bin") + ":" + os.Getenv("PATH"),
	}
}

func (p *pgsync) schema(db *database) string { return filepath.Join(p.dir, db.name+".json") }

func (p *pgsync) fill(ctx context.Context, db *database, n int) error {
	type m = map[string]any
	text, err := json.Marshal([]m{{
		"database": db.name, "index": p.about().index,
		"mapping": m{"title": m{"type": "text"}, "body": m{"type": "text"}, "price": m{"type": "double"}, "updated_at": m{"type": "date"}},
		"nodes":   m{"table": "item", "columns": []string{"id", "title", "body", "price", "updated_at"}},
	}})
	if err != nil {
		return err
	}
	if err := os.WriteFile(p.schema(db), text, 0o644); err != nil {
		return err
	}
	if err := db.insert(ctx, 1, int64(n)); err != nil {
		return err
	}
	_, err = run(ctx, p.dir, p.env(db), p.bin("bootstrap"))
	return err
}

func (p *pgsync) start(_ context.Context, db *database, name string) (*program, error) {
	return start(command{name: name, dir: p.dir, log: p.log(db.name + "-" + name), argv: []string{p.bin("pgsync"), "--daemon"}, env: p.env(db)})
}

func (p *pgsync) settled(_ context.Context, db *database) (bool, error) {
	found, err := filepath.Glob(filepath.Join(p.dir, "."+db.name+"_*"))
	return len(found) > 0, err
}

func (p *pgsync) ready(context.Context, *database, int) (bool, error) { return true, nil }

func (p *pgsync) active(context.Context, *database) (string, error) { return "a", nil }

func (p *pgsync) write(ctx context.Context, db *database, first int64, committed func(int64)) error {
	return writeBySQL(ctx, db, first, committed)
}
