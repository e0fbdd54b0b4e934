package chaos

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/samuelhu324-dev/weft/examples/shop"
	"github.com/samuelhu324-dev/weft/internal/lab/faults"
	"github.com/samuelhu324-dev/weft/internal/lab/rig"
	"github.com/samuelhu324-dev/weft/internal/lab/traffic"
	"github.com/samuelhu324-dev/weft/internal/testenv/history"
	"github.com/samuelhu324-dev/weft/internal/testenv/reconcile"
	"github.com/samuelhu324-dev/weft/outbox"
	"github.com/samuelhu324-dev/weft/projections"
)

// The domains: search_index, which the application writes events for, and the shop of
// examples/shop, whose events triggers write.
const (
	Wordloom = "wordloom"
	Shop     = "shop"
)

// application writes while the faults go on.
type application interface {
	Run(ctx context.Context) error
	Renew(ctx context.Context, keys ...outbox.Key) error
	Acknowledged() []history.Enqueued
	Produced() int
	Unknown() int
}

// domain is what a run carries.
type domain struct {
	application
	projection string
	watched    func(context.Context) ([]outbox.Key, error) // writes entities that stay as they are; nil where they cannot be told from others
	documents  string                                      // query for what they must be; see [reconcile.Run]
	typ        string                                      // of the entities, where documents are known by their places alone
	shards     map[string]int                              // by routing
}

// openDomain makes the tables that weft migrate up does not, and returns who writes to them.
func (r *run) openDomain() *domain {
	if r.opts.Domain != Shop {
		app := &traffic.Application{Pool: r.Pool}
		return &domain{projection: projections.SearchIndexToElastic, watched: func(ctx context.Context) ([]outbox.Key, error) {
			keys, changes := make([]outbox.Key, watchedEntities), make([]traffic.Change, watchedEntities)
			for i := range keys {
				keys[i] = traffic.NewKey()
				changes[i] = traffic.Upsert(keys[i], "always there")
			}
			_, err := app.Write(ctx, changes...)
			return keys, err
		}, documents: reconcile.SearchIndex, application: struct {
			*traffic.Stream
			*traffic.Application
		}{&traffic.Stream{
			App: app, Writers: writers, Rate: float64(r.opts.Rate), Seed: r.opts.Seed,
			Entities: traffic.Entities(entities), Hot: hotEntities, Late: traffic.EveryThird,
		}, app}}
	}
	for _, sql := range []string{r.layOut(), traffic.MakeShop} {
		rig.Try(r.Pool.Exec(r.Ctx, sql)).MustDo(r, "tables of the shop")
	}
	r.Outbox = traffic.ShopOutbox
	r.Must(r.Fleet.Run(r.Ctx, "outbox", "create", "--table", "shop.product", "--children", "shop.variant:product_id",
		"--routing", "tenant_id", "--apply"))
	return &domain{projection: "products", documents: traffic.ShopDocuments, typ: traffic.ShopProduct, shards: map[string]int{}, application: &traffic.Shop{
		Pool: r.Pool, Writers: writers, Rate: float64(r.opts.Rate), Seed: r.opts.Seed, Products: entities, Hot: hotEntities,
	}}
}

// layOut copies the files of the shop, tells the instances of them, and returns its tables.
func (r *run) layOut() (schema string) {
	const noun = "files of the shop"
	dir := filepath.Join(r.builds(), "shop")
	r.MustDo(noun, os.RemoveAll(dir)) // a run that was killed has left it
	r.MustDo(noun, os.CopyFS(dir, shop.Files))
	read := func(name string) string {
		text := rig.Try(shop.Files.ReadFile(name)).MustDo(r, noun)
		return string(text)
	}
	config := filepath.Join(dir, "weft.yaml")
	own := strings.Replace(read("weft.yaml"), "{name: products,", "{name: "+r.Index+",", 1)
	r.MustDo(noun, os.WriteFile(config, []byte(own), 0o600))
	r.Fleet.Env = append(r.Fleet.Env, "WEFT_CONFIG="+config)
	return read("schema.sql")
}

// end reads both stores. Documents are there by two names: of the entity, and of what [judged]
// writes to.
func (d *domain) end(ctx context.Context, p *rig.Place) (*history.End, error) {
	end, err := history.ReadEnd(ctx, p.Pool, p.Elastic, p.Index, d.documents)
	if err != nil || d.typ == "" {
		return end, err
	}
	named := map[string]int64{}
	for place, version := range end.Documents {
		physical, err := d.document(ctx, p, place)
		if err != nil {
			return nil, err
		}
		named[d.typ+":"+place], named[physical] = version, version
	}
	end.Documents = named
	for i := range end.Differences {
		end.Differences[i].ID = d.typ + ":" + end.Differences[i].ID
	}
	return end, nil
}

// judged gives items the names by which the record knows their entities, and says which of them
// write to one document.
func (d *domain) judged(ctx context.Context, p *rig.Place, items []history.Applied) (out []history.Applied, err error) {
	if d.typ == "" {
		return items, nil
	}
	out = slices.Clone(items)
	for i := range out {
		if out[i].Document, err = d.document(ctx, p, out[i].ID); err != nil {
			return nil, err
		}
		out[i].ID = d.typ + ":" + out[i].ID
	}
	return out, nil
}

// document names the document of a place: its id, on the shard of its routing.
func (d *domain) document(ctx context.Context, p *rig.Place, place string) (string, error) {
	routing, id, _ := strings.Cut(place, ":")
	shard, known := d.shards[routing]
	if !known {
		var found struct{ Shards [][]struct{ Shard int } }
		path := "/" + url.PathEscape(p.Index) + "/_search_shards?routing=" + url.QueryEscape(routing)
		if err := p.Elastic.Do(ctx, http.MethodGet, path, nil, &found); err != nil {
			return "", fmt.Errorf("find the shard of routing %s: %w", routing, err)
		}
		shard = found.Shards[0][0].Shard
		d.shards[routing] = shard
	}
	return fmt.Sprintf("%s on shard %d", id, shard), nil
}

// shardConns is the size of the pool by which the run looks at one shard.
const shardConns = 4

// homesTimeout bounds the look at all entities of a run.
const homesTimeout = time.Minute

// install makes weft's tables, in each shard where there are several.
func (r *run) install() {
	if r.opts.Shards <= 1 {
		r.shards = rig.Shards{r.Place}
		r.Must(r.Fleet.Run(r.Ctx, "migrate", "up"))
		return
	}
	count := strconv.Itoa(r.opts.Shards)
	r.Must(r.Fleet.Run(r.Ctx, "shards", "create", count, "--by", "weftlab chaos"))
	r.Fleet.Env = append(r.Fleet.Env, "WEFT_SHARDS="+count)
	for n := range r.opts.Shards {
		r.shards = append(r.shards, rig.Try(r.OpenShard(r.Ctx, n, shardConns)).Must(r))
	}
	r.target.Shards = r.shards
}

// evenlyLed returns an error where instances share shards, and not evenly.
func (r *run) evenlyLed(ctx context.Context) error {
	if r.opts.Shards <= 1 {
		return nil
	}
	return r.shards.Even(ctx, rig.Map(r.Members(), func(m *rig.Member) string { return m.Name })...)
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
func (r *run) followed(i *injection, wait func(p *rig.Place, epoch int64) error) error {
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
	if i.Place.Shard == "" {
		return ""
	}
	return " of shard " + i.Place.Shard
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
	return strings.Join(rig.Map(slices.Sorted(maps.Keys(led)), func(name string) string { return fmt.Sprintf("%s leads %d", name, led[name]) }), ", ")
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
