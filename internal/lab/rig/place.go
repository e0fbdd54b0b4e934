package rig

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/samuelhu324-dev/weft/internal/postgres"
	"github.com/samuelhu324-dev/weft/internal/testenv/reconcile"
	"github.com/samuelhu324-dev/weft/internal/testenv/stack"
	"github.com/samuelhu324-dev/weft/projections/elastic"
)

const (
	// AppName is how the workshop's sessions are named, so that faults leave them alone.
	AppName = "weftlab"

	// QueryTimeout bounds a short statement.
	QueryTimeout = 10 * time.Second

	requestTimeout = 30 * time.Second // for a cluster that is slow to apply a setting
	closeTimeout   = 30 * time.Second
)

// Place is where a run works: servers, and names of its own on them.
type Place struct {
	Servers *stack.Stack // nil when both servers are the caller's
	// Started says which servers are the run's own, to be stopped and restarted at will.
	Started struct{ Postgres, Elastic bool }

	DatabaseURL string // with the schema, where there is one
	ElasticURL  string
	Schema      string // empty: the database's default
	Index       string // name for weft, which makes it
	Group       string // of leadership
	Outbox      string // table that is written, recorded and waited for
	Shard       string // number of the shard that the place is; empty where there are no shards

	Pool    *pgxpool.Pool // of DatabaseURL, past all faults
	Elastic *reconcile.Client

	parent *Place   // that a corner is in
	shards []*Place // see OpenShard
}

// Open starts the servers that opts does not name, and connects to both. It makes nothing on
// them. conns is the size of the pool.
func Open(ctx context.Context, opts stack.Options, conns int) (p *Place, err error) {
	p = &Place{Group: "weft", Outbox: Outbox}
	p.Started.Postgres, p.Started.Elastic = opts.DatabaseURL == "", opts.ElasticURL == ""
	servers, err := stack.Start(ctx, opts)
	if err != nil {
		return nil, err
	}
	if p.Started.Postgres || p.Started.Elastic {
		p.Servers = servers
	}
	defer func() {
		if err != nil {
			p, err = nil, errors.Join(err, p.Close(ctx))
		}
	}()
	p.ElasticURL = servers.ElasticURL()
	if p.DatabaseURL, err = postgres.Normalize(servers.DatabaseURL()); err != nil {
		return p, fmt.Errorf("DATABASE_URL: %w", err)
	}
	if opts.Replication != "" {
		p.DatabaseURL = servers.PairURL()
	}
	if p.Pool, err = OpenPool(ctx, p.DatabaseURL, conns); err != nil {
		return p, err
	}
	p.Elastic, err = reconcile.NewClient(p.ElasticURL)
	return p, err
}

// OpenPool returns a pool of a database whose sessions bear the workshop's name.
func OpenPool(ctx context.Context, databaseURL string, conns int) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(databaseURL)
	if err != nil {
		return nil, fmt.Errorf("database URL: %w", err)
	}
	config.MaxConns = int32(conns)
	config.ConnConfig.RuntimeParams["application_name"] = AppName
	pool, err := pgxpool.NewWithConfig(ctx, config)
	return pool, Wrap("open pool", err)
}

// Suffix returns eight random characters for names that nobody else has.
func Suffix() string { return strings.ToLower(rand.Text()[:8]) }

// Corner returns a place on the same servers, with a schema that it makes, and an index and a
// group of its own. Its Close removes schema and index, and leaves the servers.
func (p *Place) Corner(ctx context.Context, schema, index, group string, conns int) (c *Place, err error) {
	databaseURL, err := postgres.InSchema(p.DatabaseURL, schema)
	if err != nil {
		return nil, fmt.Errorf("DATABASE_URL: %w", err)
	}
	corner := *p
	c = &corner
	c.shards = nil
	c.parent, c.Pool, c.DatabaseURL, c.Schema, c.Index, c.Group = p, nil, databaseURL, schema, index, group
	limited, cancel := context.WithTimeout(ctx, QueryTimeout)
	defer cancel()
	if _, err := p.Pool.Exec(limited, "create schema "+pgx.Identifier{schema}.Sanitize()); err != nil {
		return nil, fmt.Errorf("make schema %s: %w", schema, err)
	}
	if c.Pool, err = OpenPool(ctx, c.DatabaseURL, conns); err != nil {
		return nil, errors.Join(err, c.Close(ctx))
	}
	return c, nil
}

// Close ends the connections, those of shards too, removes a corner's schema and index, and stops
// the servers that were started. The end of ctx does not cut it short.
func (p *Place) Close(ctx context.Context) error {
	for _, s := range p.shards {
		s.Pool.Close()
	}
	if p.Pool != nil {
		p.Pool.Close()
	}
	if p.parent != nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
		defer cancel()
		return p.parent.Remove(ctx, p.Schema, p.Index, p.Group)
	}
	if p.Elastic != nil {
		p.Elastic.Close()
	}
	if p.Servers != nil {
		return p.Servers.Close()
	}
	return nil
}

// Remove deletes what a corner has made: its index, the sessions of its group, and last its
// schema, by which the rest is found. What is gone already is no error. An empty name is left
// out.
func (p *Place) Remove(ctx context.Context, schema, index, group string) error {
	var errs []error
	if index != "" {
		errs = append(errs, p.Elastic.DeleteIndices(ctx, index))
	}
	if group != "" {
		if _, err := p.Pool.Exec(ctx, `select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and application_name like $1`,
			"weft/"+group+"/%"); err != nil {
			errs = append(errs, fmt.Errorf("end sessions of group %s: %w", group, err))
		}
	}
	if errors.Join(errs...) == nil && schema != "" {
		if _, err := p.Pool.Exec(ctx, "drop schema if exists "+pgx.Identifier{schema}.Sanitize()+" cascade"); err != nil {
			errs = append(errs, fmt.Errorf("drop schema %s: %w", schema, err))
		}
	}
	return errors.Join(errs...)
}

// Row is the row of a query that is still to be run.
type Row func(into []any) error

// Row returns the row of a short query. noun is what its errors begin with.
func (p *Place) Row(ctx context.Context, noun, sql string, args ...any) Row {
	return func(into []any) error {
		ctx, cancel := context.WithTimeout(ctx, QueryTimeout)
		defer cancel()
		return Wrap(noun, p.Pool.QueryRow(ctx, sql, args...).Scan(into...))
	}
}

// Scan runs the query and reads its row.
func (r Row) Scan(into ...any) error { return r(into) }

// Ask sends Elasticsearch a short request, as [reconcile.Client.Do] does. noun is what its errors begin with.
func (p *Place) Ask(ctx context.Context, noun, method, path string, in, out any) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	return Wrap(noun, p.Elastic.Do(ctx, method, path, in, out))
}

// Settings are the environment that points weft at the place.
func (p *Place) Settings() []string {
	return []string{
		"DATABASE_URL=" + p.DatabaseURL, "ELASTIC_URL=" + p.ElasticURL, "ELASTIC_INDEX=" + p.Index, "WEFT_GROUP=" + p.Group, "GOTRACEBACK=all",
	}
}

// ErrEnvironment is the error for a database that is neither test nor dev.
var ErrEnvironment = errors.New("not a place for drills")

// CheckEnvironment returns the environment of a database, which its sentinel or else its name
// tells. It fails unless that is test or dev and, when want is not empty, want. The caller
// gives ctx a deadline.
func CheckEnvironment(ctx context.Context, db postgres.Querier, want string) (environment string, err error) {
	var other *postgres.EnvironmentError
	for _, env := range []string{"test", "dev"} {
		err := postgres.CheckEnvironment(ctx, db, env)
		if err == nil {
			return env, postgres.CheckEnvironment(ctx, db, want)
		}
		if !errors.As(err, &other) {
			return "", err
		}
	}
	return "", fmt.Errorf("%w: database %q is %s (by %s), and drills and loads run on test and dev only; if it is one of these, say so in row 1 of environment_sentinel",
		ErrEnvironment, other.Database, other.Have, other.Source)
}

// Cluster is what a cluster of Elasticsearch says of itself.
type Cluster struct {
	Master string   `json:"master"` // name of the node
	Nodes  []string `json:"nodes"`  // names, in order
}

// Cluster asks for the nodes that the elected master counts, whichever node it asks.
func (p *Place) Cluster(ctx context.Context) (c Cluster, err error) {
	var state struct {
		Master string                           `json:"master_node"`
		Nodes  map[string]struct{ Name string } `json:"nodes"`
	}
	if err := p.Ask(ctx, "ask for the nodes", http.MethodGet, "/_cluster/state/master_node,nodes?master_timeout=1s", nil, &state); err != nil {
		return c, err
	}
	c.Master = state.Nodes[state.Master].Name
	for _, n := range state.Nodes {
		c.Nodes = append(c.Nodes, n.Name)
	}
	slices.Sort(c.Nodes)
	return c, nil
}

// Copy is one copy of a shard.
type Copy struct {
	Shard string `json:"shard"`
	Kind  string `json:"prirep"` // p of a primary
	State string `json:"state"`
	Node  string `json:"node"` // name; empty for a copy that is nowhere
}

// Copies returns the copies of an index's shards.
func (p *Place) Copies(ctx context.Context, index string) (copies []Copy, err error) {
	err = p.Ask(ctx, "ask for the shards", http.MethodGet, "/_cat/shards/"+url.PathEscape(index)+"?format=json&h=shard,prirep,state,node", nil, &copies)
	return copies, err
}

// InUse returns the index behind the name that weft uses.
func (p *Place) InUse(ctx context.Context) (string, error) {
	var found map[string]any
	if err := p.Ask(ctx, "look up the alias", http.MethodGet, "/_alias/"+url.PathEscape(p.Index), nil, &found); err != nil {
		return "", err
	}
	for index := range found {
		if len(found) == 1 {
			return index, nil
		}
	}
	return "", fmt.Errorf("the alias leads to %d indexes", len(found))
}

// Blocked reports whether the index takes no writes because a disk is full.
func (p *Place) Blocked(ctx context.Context, index string) (bool, error) {
	var found map[string]struct{ Settings map[string]string }
	err := p.Ask(ctx, "ask for the settings of "+index, http.MethodGet, "/"+url.PathEscape(index)+"/_settings?flat_settings=true", nil, &found)
	return found[index].Settings["index.blocks.read_only_allow_delete"] == "true", err
}

// ClusterIndex are the settings of an index on several nodes: three shards, and a replica of each.
const ClusterIndex = `{"number_of_shards": 3, "number_of_replicas": 1}`

// MakeIndex makes an index as weft does, before weft does. settings are JSON, and win over weft's own.
func (p *Place) MakeIndex(ctx context.Context, name, settings string) error {
	sink, err := elastic.New(elastic.Config{URLs: strings.Split(p.ElasticURL, ","), Index: name, Settings: json.RawMessage(settings)},
		zap.NewNop(), prometheus.NewRegistry(), AppName)
	if err != nil {
		return Wrap("make the index", err)
	}
	defer sink.Close()
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	return Wrap("make the index", sink.EnsureIndex(ctx))
}
