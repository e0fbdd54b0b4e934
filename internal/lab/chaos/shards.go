package chaos

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/samuelhu324-dev/weft/internal/lab/faults"
	"github.com/samuelhu324-dev/weft/internal/lab/rig"
	"github.com/samuelhu324-dev/weft/outbox"
)

// shardConns is the size of the pool by which the run looks at one shard.
const shardConns = 4

// homesTimeout bounds the look at all entities of a run.
const homesTimeout = time.Minute

// install makes weft's tables, in each shard where there are several.
func (r *run) install() {
	if r.opts.Shards <= 1 {
		r.shards = rig.Shards{r.Group}
		r.Must(r.Fleet.Run(r.Ctx, "migrate", "up"))
		return
	}
	count := strconv.Itoa(r.opts.Shards)
	r.Must(r.Fleet.Run(r.Ctx, "shards", "create", count, "--by", "weftlab chaos"))
	r.Fleet.Env = append(r.Fleet.Env, "WEFT_SHARDS="+count)
	for n := range r.opts.Shards {
		p := rig.Try(r.OpenShard(r.Ctx, n, shardConns)).Must(r)
		r.shards = append(r.shards, r.At(p))
	}
	r.target.Shards = r.shards
}

// evenlyLed returns an error where instances share shards, and not evenly.
func (r *run) evenlyLed(ctx context.Context) error {
	if r.opts.Shards <= 1 {
		return nil
	}
	var names []string
	for _, m := range r.Members() {
		names = append(names, m.Name)
	}
	return r.shards.Even(ctx, names...)
}

// struck reports whether the fault has met the leader of shard n.
func (i *injection) struck(n int) bool {
	switch {
	case i.Measure == faults.Restarted: // the server of all
		return i.Leader
	case i.OneShard && n != i.Step.Shard:
		return false
	default:
		return i.met[n].Instance == i.Instance
	}
}

// followed waits for what comes after the terms that the fault has met, shard by shard.
func (r *run) followed(i *injection, wait func(g *rig.Group, epoch int64) error) error {
	for n, s := range r.shards {
		if !i.struck(n) {
			continue
		}
		if err := wait(s, i.met[n].Epoch); err != nil {
			return err
		}
	}
	return nil
}

// ofShard names the shard that a fault was about, where there are several.
func (i *injection) ofShard() string {
	if i.Group.Shard == "" {
		return ""
	}
	return " of shard " + i.Group.Shard
}

// whoLeads is the part of the status line about leaders.
func whoLeads(leaders []rig.Leadership) string {
	if len(leaders) == 1 {
		return leaders[0].String()
	}
	led := map[string]int{}
	for _, l := range leaders {
		name := l.Instance
		if l.Epoch == 0 || l.Released {
			name = "nobody"
		}
		led[name]++
	}
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(led)) {
		parts = append(parts, fmt.Sprintf("%s leads %d", name, led[name]))
	}
	return strings.Join(parts, ", ")
}

// homes returns the shard of each entity in the record of any, as the database says.
func (r *run) homes(ctx context.Context) (map[outbox.Key]int, error) {
	ctx, cancel := context.WithTimeout(ctx, homesTimeout)
	defer cancel()
	home := map[outbox.Key]int{}
	for _, s := range r.shards {
		of := func(table string) string { return pgx.Identifier{s.Schema, table}.Sanitize() }
		rows, _ := r.Pool.Query(ctx, `
select e.entity_type, e.entity_id, weft_shard_of(e.entity_id)
from (select entity_type, entity_id from `+of("weftlab_history")+` union select entity_type, entity_id from `+of("weftlab_source")+`) e`)
		var key outbox.Key
		var n int
		if _, err := pgx.ForEachRow(rows, []any{&key.Type, &key.ID, &n}, func() error { home[key] = n; return nil }); err != nil {
			return nil, err
		}
	}
	return home, nil
}
