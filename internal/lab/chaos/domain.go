package chaos

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/samuelhu324-dev/weft/examples/shop"
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
	documents  string                                      // query for what they must be; see [reconcile.Visitor]
	typ        string                                      // of the entities, where documents are known by their places alone
	shards     map[string]int                              // by routing
}

// openDomain makes the tables that weft migrate up does not, and returns who writes to them.
func (r *run) openDomain(ctx context.Context) (*domain, error) {
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
		}, app}}, nil
	}
	schema, err := r.layOut()
	if err != nil {
		return nil, fmt.Errorf("files of the shop: %w", err)
	}
	for _, sql := range []string{schema, traffic.MakeShop} {
		if _, err := r.Pool.Exec(ctx, sql); err != nil {
			return nil, fmt.Errorf("tables of the shop: %w", err)
		}
	}
	r.Outbox = traffic.ShopOutbox
	return &domain{projection: "products", documents: traffic.ShopDocuments, typ: traffic.ShopProduct, shards: map[string]int{}, application: &traffic.Shop{
			Pool: r.Pool, Writers: writers, Rate: float64(r.opts.Rate), Seed: r.opts.Seed, Products: entities, Hot: hotEntities,
		}}, r.Fleet.Run(ctx, "outbox", "create", "--table", "shop.product", "--children", "shop.variant:product_id",
			"--routing", "tenant_id", "--apply")
}

// layOut copies the files of the shop, tells the instances of them, and returns its tables.
func (r *run) layOut() (schema string, err error) {
	dir := filepath.Join(r.builds(), "shop")
	if err := os.CopyFS(dir, shop.Files); err != nil {
		return "", err
	}
	config := filepath.Join(dir, "weft.yaml")
	text, err := shop.Files.ReadFile("weft.yaml")
	if err == nil {
		own := strings.Replace(string(text), "{name: products,", "{name: "+r.Index+",", 1)
		err = os.WriteFile(config, []byte(own), 0o600)
	}
	if err != nil {
		return "", err
	}
	r.Fleet.Env = append(r.Fleet.Env, "WEFT_CONFIG="+config)
	text, err = shop.Files.ReadFile("schema.sql")
	return string(text), err
}

// end reads both stores. Documents are there by two names: of the entity, and of what [judged]
// writes to.
func (d *domain) end(ctx context.Context, p *rig.Place) (*history.End, error) {
	end, err := history.ReadEndOf(ctx, p.Pool, p.Elastic, p.Index, d.documents)
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
		var found struct {
			Shards [][]struct {
				Shard int `json:"shard"`
			} `json:"shards"`
		}
		path := "/" + url.PathEscape(p.Index) + "/_search_shards?routing=" + url.QueryEscape(routing)
		if err := p.Elastic.Do(ctx, http.MethodGet, path, nil, &found); err != nil {
			return "", fmt.Errorf("find the shard of routing %s: %w", routing, err)
		}
		shard = found.Shards[0][0].Shard
		d.shards[routing] = shard
	}
	return fmt.Sprintf("%s on shard %d", id, shard), nil
}
