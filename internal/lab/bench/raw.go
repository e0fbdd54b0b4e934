package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/samuelhu324-dev/weft/internal/lab/rig"
	"github.com/samuelhu324-dev/weft/internal/lab/traffic"
	"github.com/samuelhu324-dev/weft/outbox"
	"github.com/samuelhu324-dev/weft/projections"
	"github.com/samuelhu324-dev/weft/projections/elastic"
)

const (
	rawBatch    = 1000 // documents per request
	rawInFlight = 2
	rawTimeout  = time.Minute // of one request
)

// rawQuery asks for no more than the loader reads.
const rawQuery = "require_alias=true&filter_path=errors,items.*.error"

// corpus is a backlog as bodies of bulk requests, one line pair for every event.
type corpus struct {
	bodies    [][]byte
	events    int
	documents int // that an index holds afterwards
}

// recorder is a destination that keeps what it is given.
type recorder struct {
	projections.Documents // the rest is not called
	body                  bytes.Buffer
}

// Write implements [projections.Documents].
func (r *recorder) Write(_ context.Context, actions []elastic.Action) ([]outbox.Outcome, error) {
	out := make([]outbox.Outcome, len(actions))
	for i := range actions {
		a := &actions[i]
		op, body := "index", string(a.Body)+"\n"
		if a.Delete {
			op, body = "delete", ""
		}
		fmt.Fprintf(&r.body, `{"%s":{"_id":%q,"version":%d,"version_type":"external_gte"}}`+"\n%s", op, a.ID, a.Version, body)
		out[i] = outbox.Outcome{Verdict: outbox.Done}
	}
	return out, nil
}

// render makes the corpus of the site's backlog with weft's own projection.
func (s *site) render() *corpus {
	ctx, cancel := context.WithTimeout(s.Ctx, loadTimeout)
	defer cancel()
	rec := &recorder{}
	search := rig.Try(projections.NewSearch(s.pool, rec, zap.NewNop(), prometheus.NewRegistry())).Must(s)
	rows, _ := s.pool.Query(ctx, `select entity_type, entity_id, op, event_version from `+outboxTable+`
where next_retry_at is null order by event_version`)
	events, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (e outbox.Event, err error) {
		err = row.Scan(&e.Key.Type, &e.Key.ID, &e.Op, &e.Version)
		return e, err
	})
	s.MustDo("read events", err)
	c := &corpus{events: len(events)}
	for batch := range slices.Chunk(events, rawBatch) {
		rig.Try(search.Project(ctx, batch)).MustDo(s, "render documents")
		c.bodies = append(c.bodies, bytes.Clone(rec.body.Bytes()))
		rec.body.Reset()
	}
	s.ask("entities", "select count(*) from search_index", nil, &c.documents)
	return c
}

// loadRaw is the bare loader: the least that carrying the corpus into an index costs.
func (b *bench) loadRaw(c *corpus) (s sample) {
	b.Must(b.place.MakeIndex(b.Ctx, rawIndex, ""))
	b.rest()
	client := &http.Client{Timeout: rawTimeout, Transport: &http.Transport{MaxIdleConnsPerHost: rawInFlight, DisableCompression: true}}
	defer client.CloseIdleConnections()
	before := b.mark(nil)
	began := time.Now()
	loop := traffic.Loop{Ops: len(c.bodies), Concurrency: rawInFlight}
	err := loop.Run(b.Ctx, func(ctx context.Context, n int, _ time.Time) error {
		return b.place.postRaw(ctx, client, c.bodies[n])
	})
	b.MustDo("bare loader", errors.Join(err, b.Ctx.Err()))
	took := time.Since(began)
	after := b.mark(nil)
	s.EPS = float64(c.events) / took.Seconds()
	s.CPU = cpu{Elasticsearch: perEvent(after.servers.elastic-before.servers.elastic, float64(c.events)) * 1e6}
	b.expect(rawIndex, c.documents)
	b.Must(b.place.Elastic.DeleteIndices(b.Ctx, rawIndex))
	return s
}

func (p *place) postRaw(ctx context.Context, client *http.Client, body []byte) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.ElasticURL+"/"+rawIndex+"/_bulk?"+rawQuery, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/x-ndjson")
	res, err := client.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	answer, err := io.ReadAll(res.Body)
	if err != nil {
		return err
	}
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %.500s", res.Status, answer)
	}
	return checkRaw(answer)
}

// checkRaw accepts conflicts: with two requests in flight an older event of an entity
// may come after a newer one.
func checkRaw(answer []byte) error {
	var bulk struct {
		Errors *bool `json:"errors"`
		Items  []map[string]struct {
			Error struct {
				Type   string `json:"type"`
				Reason string `json:"reason"`
			} `json:"error"`
		} `json:"items"`
	}
	if err := json.Unmarshal(answer, &bulk); err != nil {
		return fmt.Errorf("bulk answer: %w", err)
	}
	if bulk.Errors == nil {
		return errors.New("bulk answer: it does not say whether there were errors")
	}
	for _, item := range bulk.Items {
		for _, result := range item {
			if e := result.Error; e.Type != "version_conflict_engine_exception" {
				return fmt.Errorf("bulk answer: %s: %s", e.Type, e.Reason)
			}
		}
	}
	return nil
}
