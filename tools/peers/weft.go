package main

import (
	"context"
	"os"
	"path/filepath"
)

const weftDeclaration = `projections:
  item:
    outbox: {table: item_outbox_events}
    source:
      query: |
        select i.id as entity_id, v.version, i.title, i.body, i.price, i.updated_at
        from item i join item_outbox_versions v on v.entity_id = i.id
        where i.id = any($1)
    index: {name: peers-weft, mapping: item.json}
`

const weftMapping = `{"dynamic": "strict", "properties": {"title": {"type": "text"}, "body": {"type": "text"},
  "price": {"type": "double"}, "updated_at": {"type": "date"}}}`

// weft is this tree's.
type weft struct{ *site }

func (w weft) about() about {
	return about{
		name: "weft", prefix: "peers-weft", index: "peers-weft", backlog: "rows by SQL; triggers write an event for each",
		settled: "no event is pending", standby: "a second instance",
	}
}

func (w weft) settings() []string {
	return []string{"all defaults (OUTBOX_BULK_SIZE=2000, OUTBOX_CONCURRENCY=3, WEFT_LEADER_HEARTBEAT=1s, WEFT_LEADER_IDLE_SESSION=5s)", "projection declared in YAML"}
}

func (w weft) prepare(ctx context.Context) (string, error) {
	for name, text := range map[string]string{"weft.yaml": weftDeclaration, "item.json": weftMapping} {
		if err := os.WriteFile(filepath.Join(w.dir, name), []byte(text), 0o644); err != nil {
			return "", err
		}
	}
	commit, err := run(ctx, w.source, nil, "git", "describe", "--always", "--dirty", "--abbrev=9")
	return "commit " + commit, err
}

func (w weft) env(db *database) []string {
	return []string{
		"DATABASE_URL=" + db.url, "ELASTIC_URL=" + w.elastic.url, "WEFT_CONFIG=" + filepath.Join(w.dir, "weft.yaml"),
		"WEFT_PROJECTIONS=item", "WORDLOOM_ENV=", "OUTBOX_METRICS_PORT=0", "WEFT_DESK_LISTEN=",
	}
}

func (w weft) fill(ctx context.Context, db *database, n int) error {
	for _, args := range [][]string{{"migrate", "up"}, {"outbox", "create", "--table", "item", "--apply"}} {
		if _, err := run(ctx, w.dir, w.env(db), append([]string{w.weft}, args...)...); err != nil {
			return err
		}
	}
	return db.insert(ctx, 1, int64(n))
}

func (w weft) start(_ context.Context, db *database, name string) (*program, error) {
	return start(command{
		name: name, dir: w.dir, log: w.log(db.name + "-" + name), argv: []string{w.weft, "run"},
		env: append(w.env(db), "WEFT_INSTANCE="+name),
	})
}

func (w weft) settled(ctx context.Context, db *database) (bool, error) {
	return db.none(ctx, "select count(*) from item_outbox_events where status <> 'done'")
}

// ready: the standby has had the time to connect once the leader has led for a while.
func (w weft) ready(ctx context.Context, db *database, _ int) (bool, error) {
	return db.none(ctx, `select 1 - count(*) from weft_leader
		where released_at is null and clock_timestamp() - acquired_at > interval '3 seconds'`)
}

func (w weft) active(ctx context.Context, db *database) (string, error) {
	var name string
	err := db.QueryRow(ctx, "select instance from weft_leader").Scan(&name)
	return name, err
}

func (w weft) write(ctx context.Context, db *database, first int64, committed func(int64)) error {
	return writeBySQL(ctx, db, first, committed)
}
