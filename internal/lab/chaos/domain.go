package chaos

import (
	"context"
	"fmt"
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
	documents string // query for what they must be; see [reconcile.Visitor]
	typ       string // of the entities, where a document's id is the entity's alone
}

// openDomain makes the tables that weft migrate up does not, and returns who writes to them.
func (r *run) openDomain(ctx context.Context) (*domain, error) {
	if r.opts.Domain != Shop {
		app := &traffic.Application{Pool: r.Pool}
		return &domain{documents: reconcile.SearchIndex, application: struct {
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
	return &domain{documents: traffic.ShopDocuments, typ: traffic.ShopProduct, application: &traffic.Shop{
		Pool: r.Pool, Writers: writers, Rate: float64(r.opts.Rate), Seed: r.opts.Seed, Products: entities, Hot: hotEntities,
	}}, r.Fleet.Run(ctx, "outbox", "create", "--table", "shop.product", "--children", "shop.variant:product_id", "--apply")
}

// layOut copies the files of the shop, tells the instances of them, and returns its tables.
func (r *run) layOut() (schema string, err error) {
	dir := filepath.Join(r.builds(), "shop")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	files, err := shop.Files.ReadDir(".")
	if err != nil {
		return "", err
	}
	for _, f := range files {
		text, err := shop.Files.ReadFile(f.Name())
		if err != nil {
			return "", err
		}
		if f.Name() == "schema.sql" {
			schema = string(text)
		}
		own := strings.Replace(string(text), "{name: products,", "{name: "+r.Index+",", 1)
		if err := os.WriteFile(filepath.Join(dir, f.Name()), []byte(own), 0o600); err != nil {
			return "", err
		}
	}
	r.Fleet.Env = append(r.Fleet.Env, "WEFT_CONFIG="+filepath.Join(dir, "weft.yaml"))
	return schema, nil
}

// end reads both stores.
func (d *domain) end(ctx context.Context, p *rig.Place) (*history.End, error) {
	end, err := history.ReadEndOf(ctx, p.Pool, p.Elastic, p.Index, d.documents)
	if err != nil || d.typ == "" {
		return end, err
	}
	named := make(map[string]int64, len(end.Documents))
	for id, version := range end.Documents {
		named[d.name(id)] = version
	}
	end.Documents = named
	for i := range end.Differences {
		end.Differences[i].ID = d.name(end.Differences[i].ID)
	}
	return end, nil
}

// applied gives documents the names by which the record knows their entities.
func (d *domain) applied(items []history.Applied) []history.Applied {
	items = slices.Clone(items)
	for i := range items {
		items[i].ID = d.name(items[i].ID)
	}
	return items
}

func (d *domain) name(document string) string {
	if d.typ == "" {
		return document
	}
	return d.typ + ":" + document
}
