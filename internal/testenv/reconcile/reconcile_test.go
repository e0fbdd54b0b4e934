package reconcile_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/internal/testenv/reconcile"
)

func TestMain(m *testing.M) { testenv.Main(m) }

type fixture struct {
	t     *testing.T
	pool  *pgxpool.Pool
	es    *reconcile.Client
	index string
}

func setup(t *testing.T) *fixture {
	t.Helper()
	es, err := reconcile.NewClient(testenv.ElasticURL(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(es.Close)
	f := &fixture{t: t, pool: testenv.Pool(t, testenv.Database(t)), es: es, index: testenv.Index(t)}
	f.must(http.MethodPut, "/"+f.index, map[string]any{
		"settings": map[string]any{"number_of_shards": 2, "number_of_replicas": 0, "refresh_interval": "-1"},
		"mappings": map[string]any{"dynamic": false},
	})
	return f
}

func (f *fixture) must(method, path string, in any) {
	f.t.Helper()
	if err := f.es.Do(f.t.Context(), method, path, in, nil); err != nil {
		f.t.Fatalf("%s %s: %v", method, path, err)
	}
}

func entity(i int) string { return fmt.Sprintf("00000000-0000-0000-0000-%012d", i) }

// rows adds n rows; every third has nulls where nulls may be.
func (f *fixture) rows(n int) {
	f.t.Helper()
	_, err := f.pool.Exec(f.t.Context(), `
insert into search_index (entity_type, entity_id, library_id, text, snippet, rank_score, event_version, updated_at)
select 'book', lpad(i::text, 32, '0')::uuid,
       case when i % 3 > 0 then gen_random_uuid() end, 'text "' || i || '" <&>' || chr(8232),
       case when i % 3 > 0 then 'snippet' end, case when i % 3 > 0 then i / 7.0::float8 end, 1000 + i,
       '2026-01-02 03:04:05.123456+00'
from generate_series(1, $1) i`, n)
	if err != nil {
		f.t.Fatal(err)
	}
}

// project writes the documents as Postgres renders the rows.
func (f *fixture) project() {
	f.t.Helper()
	rows, err := f.pool.Query(f.t.Context(), `
select entity_type || ':' || entity_id, event_version, (to_jsonb(s) - 'id')::text from search_index s order by entity_id`)
	if err != nil {
		f.t.Fatal(err)
	}
	defer rows.Close()
	var body strings.Builder
	for rows.Next() {
		var id, doc string
		var version int64
		if err := rows.Scan(&id, &version, &doc); err != nil {
			f.t.Fatal(err)
		}
		fmt.Fprintf(&body, `{"index":{"_id":%q,"version":%d,"version_type":"external_gte"}}`+"\n%s\n", id, version, doc)
	}
	if err := rows.Err(); err != nil {
		f.t.Fatal(err)
	}
	res, err := http.Post(testenv.ElasticURL(f.t)+"/"+f.index+"/_bulk", "application/x-ndjson", strings.NewReader(body.String()))
	if err != nil {
		f.t.Fatal(err)
	}
	defer res.Body.Close()
	var answer struct {
		Errors bool            `json:"errors"`
		Items  json.RawMessage `json:"items"`
	}
	if err := json.NewDecoder(res.Body).Decode(&answer); err != nil || answer.Errors {
		f.t.Fatalf("bulk: %v: %s", err, answer.Items)
	}
	http.DefaultClient.CloseIdleConnections()
}

func (f *fixture) put(id string, version int64, doc string) {
	f.t.Helper()
	f.must(http.MethodPut, fmt.Sprintf("/%s/_doc/%s?version=%d&version_type=external_gte", f.index, id, version), json.RawMessage(doc))
}

func (f *fixture) exec(sql string, args ...any) {
	f.t.Helper()
	if _, err := f.pool.Exec(f.t.Context(), sql, args...); err != nil {
		f.t.Fatal(err)
	}
}

func (f *fixture) run() *reconcile.Report {
	f.t.Helper()
	r, err := reconcile.Run(f.t.Context(), f.pool, f.es, f.index, reconcile.SearchIndex)
	if err != nil {
		f.t.Fatalf("Run: %v", err)
	}
	return r
}

// counted compares reports without the versions of the documents.
func counted() cmp.Option { return cmpopts.IgnoreFields(reconcile.Report{}, "Versions") }

func TestRun(t *testing.T) {
	t.Parallel()

	t.Run("EqualOverSeveralPages", func(t *testing.T) {
		t.Parallel()
		f := setup(t)
		const n = 1007 // of 500 a page
		f.rows(n)
		f.project()
		got := f.run()
		if diff := cmp.Diff(&reconcile.Report{Rows: n, Documents: n}, got, counted()); diff != "" || !got.Equal() || len(got.Versions) != n {
			t.Errorf("report (-want +got):\n%s", diff)
		}
	})

	t.Run("BothEmpty", func(t *testing.T) {
		t.Parallel()
		f := setup(t)
		if diff := cmp.Diff(&reconcile.Report{}, f.run(), counted()); diff != "" {
			t.Errorf("report (-want +got):\n%s", diff)
		}
	})

	t.Run("MissingAndExtra", func(t *testing.T) {
		t.Parallel()
		f := setup(t)
		f.rows(20)
		f.project()
		f.must(http.MethodDelete, "/"+f.index+"/_doc/book:"+entity(3), nil)
		f.exec(`delete from search_index where entity_id = $1`, entity(5))
		f.put("not-an-id", 1, `{}`)
		f.put("book:"+strings.ToUpper(uuid.NewString()), 1, `{}`)
		got := f.run()
		want := &reconcile.Report{Rows: 19, Documents: 21, Missing: 1, Extra: 3}
		if got.Rows != want.Rows || got.Documents != want.Documents || got.Missing != 1 || got.Extra != 3 || got.Stale != 0 || got.Equal() {
			t.Errorf("report: got %+v, want %+v", got, want)
		}
		var named []string
		for _, d := range got.Examples {
			named = append(named, d.String())
		}
		all := strings.Join(named, "\n")
		for _, line := range []string{"missing book:" + entity(3), "extra book:" + entity(5), "extra not-an-id"} {
			if !strings.Contains(all, line) {
				t.Errorf("examples: got\n%s\nwant %q among them", all, line)
			}
		}
	})

	t.Run("SecondDocumentOfOneRow", func(t *testing.T) {
		t.Parallel()
		f := setup(t)
		f.rows(1)
		f.project()
		alias, second := f.index, f.index+"-v2"
		first := f.index
		f.index = second
		f.must(http.MethodPut, "/"+second, map[string]any{"mappings": map[string]any{"dynamic": false}})
		f.project()
		f.index = alias + "-both"
		f.must(http.MethodPost, "/_aliases", map[string]any{"actions": []any{
			map[string]any{"add": map[string]any{"indices": []string{first, second}, "alias": f.index}},
		}})
		f.must(http.MethodPost, "/"+f.index+"/_refresh", nil)
		if got := f.run(); got.Rows != 1 || got.Documents != 2 || got.Extra != 1 || got.Missing != 0 {
			t.Errorf("report: got %+v, want the second document as extra", got)
		}
	})

	t.Run("ExamplesAreBounded", func(t *testing.T) {
		t.Parallel()
		f := setup(t)
		const maxExamples = 10
		f.rows(2 * maxExamples)
		if got := f.run(); got.Missing != 2*maxExamples || len(got.Examples) != maxExamples {
			t.Errorf("got %d missing and %d examples, want %d and %d", got.Missing, len(got.Examples), 2*maxExamples, maxExamples)
		}
	})

	t.Run("NoIndex", func(t *testing.T) {
		t.Parallel()
		f := setup(t)
		if r, err := reconcile.Run(t.Context(), f.pool, f.es, f.index+"-none", reconcile.SearchIndex); err == nil || !strings.Contains(err.Error(), "404") {
			t.Errorf("Run without an index: got %+v, %v; want the server's 404", r, err)
		}
	})
}

func TestStaleFields(t *testing.T) {
	t.Parallel()
	f := setup(t)
	f.rows(2)
	f.project()
	if got := f.run(); !got.Equal() {
		t.Fatalf("before: got %+v, want it equal", got)
	}
	const id = "book:00000000-0000-0000-0000-000000000001"
	for _, tc := range []struct{ change, want string }{
		{`text = 'other'`, "text is "},
		{`snippet = null`, `snippet is "snippet", want absent`},
		{`snippet = 'other'`, "snippet is "},
		{`library_id = null`, "library_id is "},
		{`rank_score = rank_score + 1e-15`, "rank_score is "},
		{`rank_score = null`, "rank_score is "},
		{`event_version = 1`, "_version is 1001, want 1; event_version is 1001, want 1"},
		{`updated_at = updated_at + interval '1 microsecond'`, "updated_at is "},
		{`created_at = created_at - interval '1 microsecond'`, "created_at is "},
	} {
		tx, err := f.pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tx.Exec(t.Context(), `update search_index set `+tc.change+` where entity_id = $1`, entity(1)); err != nil {
			t.Fatalf("%s: %v", tc.change, err)
		}
		got, err := reconcile.Run(t.Context(), tx, f.es, f.index, reconcile.SearchIndex)
		if err != nil {
			t.Fatal(err)
		}
		_ = tx.Rollback(t.Context())
		if got.Stale != 1 || got.Missing+got.Extra != 0 || !strings.HasPrefix(got.Examples[0].String(), "stale "+id+": "+tc.want) {
			t.Errorf("%s: got %+v, want one stale document with %q", tc.change, got, tc.want)
		}
	}

	t.Run("VersionAndUnknownField", func(t *testing.T) {
		var doc string
		err := f.pool.QueryRow(t.Context(), `select (to_jsonb(s) - 'id' || '{"more": 1}')::text from search_index s where entity_id = $1`, entity(2)).Scan(&doc)
		if err != nil {
			t.Fatal(err)
		}
		f.put("book:"+entity(2), 9999, doc)
		got := f.run()
		want := "stale book:" + entity(2) + ": _version is 9999, want 1002; more is 1, want absent"
		if got.Stale != 1 || got.Examples[0].String() != want {
			t.Errorf("got %+v, want %q", got, want)
		}
	})
}
