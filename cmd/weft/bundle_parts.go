package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/samuelhu324-dev/weft/internal/daemon"
	"github.com/samuelhu324-dev/weft/internal/doctor"
	"github.com/samuelhu324-dev/weft/internal/records"
	"github.com/samuelhu324-dev/weft/leader"
	"github.com/samuelhu324-dev/weft/outbox"
)

const (
	bundleAudit    = 500
	bundleTerms    = 200
	bundleLetters  = 50
	bundleQueue    = 50
	bundleResponse = 16 << 20 // bytes of one answer of an instance
	bundleFetch    = 3 * time.Second
)

// bundlePart is one file of a bundle that takes the database. What was read is written with an error, too.
type bundlePart struct {
	name string
	read func(context.Context) (any, error)
}

func (w *bundler) parts() []bundlePart {
	sc := scope(w.cfg)
	sc.Most = topCounts
	return []bundlePart{
		{"status.json", func(ctx context.Context) (any, error) { return records.ReadStatus(ctx, w.pool, sc) }},
		{"queues.json", func(ctx context.Context) (any, error) {
			return perTable(sc, func(t records.Table) (any, error) { return records.ReadQueue(ctx, w.pool, sc, t, bundleQueue) })
		}},
		{"doctor.json", func(ctx context.Context) (any, error) {
			target, err := daemon.ElasticConfig(w.cfg.Elastic)
			if err != nil {
				return nil, err
			}
			found, err := doctor.Examine(ctx, doctor.Options{Config: w.cfg, Pool: w.pool, Modes: modes(w.cfg), Elastic: target})
			return doctorFindings(found), err
		}},
		{"audit.json", func(ctx context.Context) (any, error) {
			found, err := outbox.ReadAudit(ctx, w.pool, outbox.AuditFilter{Limit: bundleAudit}, w.cfg.Database.Timeout)
			return records.AuditEntries(found), err
		}},
		{"history.json", func(ctx context.Context) (any, error) {
			found, err := leader.History(ctx, w.pool, w.cfg.Group, time.Time{}, bundleTerms)
			return describeTerms(found), err
		}},
		{"dead-letters.json", func(ctx context.Context) (any, error) {
			return perTable(sc, func(t records.Table) (any, error) { return w.letters(ctx, t) })
		}},
		{"plans.json", func(ctx context.Context) (any, error) {
			return perTable(sc, func(t records.Table) (any, error) {
				store, err := outbox.OpenStore(ctx, w.pool, outbox.StoreConfig{Table: t.Name, Projection: t.Projection, Group: sc.Group, Owner: "bundle", Lease: time.Second, Timeout: sc.Timeout})
				if err != nil {
					return nil, err
				}
				return store.Plans(ctx)
			})
		}},
		{"server.json", w.server},
	}
}

// perTable reads of each projection.
func perTable(sc records.Scope, read func(records.Table) (any, error)) (map[string]any, error) {
	out := map[string]any{}
	var errs []error
	for _, t := range sc.Tables {
		one, err := read(t)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		out[t.Projection] = one
	}
	return out, errors.Join(errs...)
}

func (w *bundler) letters(ctx context.Context, t records.Table) (any, error) {
	d, err := outbox.OpenDeadLetters(ctx, w.pool, t.Name, t.Projection, w.cfg.Database.Timeout)
	if err != nil {
		return nil, err
	}
	return records.ReadLetterPage(ctx, d, outbox.Selector{}, bundleLetters, topCounts)
}

// server reads versions, settings that somebody has changed, and sizes. Settings with addresses
// and passwords are left out.
func (w *bundler) server(ctx context.Context) (any, error) {
	ctx, cancel := context.WithTimeout(ctx, w.cfg.Database.Timeout)
	defer cancel()
	out := map[string]any{}
	var errs []error
	for name, sql := range map[string]string{
		"version":        "select version() as version, pg_is_in_recovery() as replica, pg_postmaster_start_time() as started_at",
		"settings":       "select name, setting, coalesce(unit, '') as unit, source from pg_settings where source not in ('default', 'client') and name !~ 'conninfo|password|command' order by name",
		"schema_version": "select version_id, is_applied, tstamp from weft_schema_version order by id desc limit 20",
		"tables": `select c.relname, pg_table_size(c.oid) as table_bytes, pg_indexes_size(c.oid) as index_bytes, c.reltuples::bigint as rows,
			s.n_dead_tup as dead_rows, s.last_vacuum, s.last_autovacuum, s.last_analyze, s.last_autoanalyze, coalesce(array_to_string(c.reloptions, ', '), '') as options
			from pg_class c left join pg_stat_user_tables s on s.relid = c.oid
			where c.relnamespace = quote_ident(current_schema())::regnamespace and c.relkind in ('r', 'p') and (c.relname ~ '^weft_' or c.relname ~ '_outbox_') order by 1`,
		"indexes": `select tablename, indexname, indexdef from pg_indexes where schemaname = current_schema() and (tablename ~ '^weft_' or tablename ~ '_outbox_') order by 1, 2`,
		"sessions": `select pid, application_name, state, wait_event_type, wait_event, backend_start, xact_start, state_change from pg_stat_activity
			where datname = current_database() order by backend_start`,
	} {
		rows, err := w.pool.Query(ctx, sql)
		if err == nil {
			out[name], err = pgx.CollectRows(rows, pgx.RowToMap)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", name, err))
		}
	}
	return out, errors.Join(errs...)
}

// metrics asks each instance that announced itself for its health and its metrics. away is why the database does
// not say which they are.
func (w *bundler) metrics(ctx context.Context, away error) error {
	if away != nil {
		return w.add("instances", nil, away)
	}
	seen, err := leader.Instances(ctx, w.pool, w.cfg.Group)
	if err != nil {
		return w.add("instances", nil, err)
	}
	client := &http.Client{Timeout: bundleFetch, Transport: &http.Transport{Proxy: nil, DisableKeepAlives: true}}
	for n, i := range seen {
		dir := fmt.Sprintf("instances/%d/", n)
		if i.HTTPAddr == "" {
			if err := w.add(dir+"metrics.txt", nil, fmt.Errorf("instance %s serves no metrics", i.Name)); err != nil {
				return err
			}
			continue
		}
		health, err := fetch(ctx, client, "http://"+i.HTTPAddr+"/health/ready")
		var who struct {
			Instance string `json:"instance"`
		}
		if err == nil && (json.Unmarshal(health, &who) != nil || who.Instance != i.Name) {
			err = fmt.Errorf("%s answers, and is not instance %s of host %s", i.HTTPAddr, i.Name, i.Host)
		}
		var report any
		if err == nil {
			report = json.RawMessage(health)
		}
		if werr := w.add(dir+"health.json", report, err); werr != nil {
			return werr
		}
		if err != nil {
			continue
		}
		metrics, err := fetch(ctx, client, "http://"+i.HTTPAddr+"/metrics")
		if werr := w.add(dir+"metrics.txt", metrics, err); werr != nil {
			return werr
		}
	}
	return nil
}

func fetch(ctx context.Context, client *http.Client, url string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return nil, fmt.Errorf("address of an instance: %w", err)
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("ask an instance: %w", err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, bundleResponse))
	if err != nil {
		return nil, fmt.Errorf("answer of an instance: %w", err)
	}
	return body, nil
}
