package main

import (
	"strings"
	"syscall"
	"testing"

	"github.com/samuelhu324-dev/weft/internal/testenv"
)

// What is wrong with one row is named, fails or waits alone, and the others go on.
func TestBadRowsOfADeclaredQuery(t *testing.T) {
	t.Parallel()
	type row struct {
		from, to string // of the query
		mapping  [2]string
		sql      string
		timeout  string
		status   string // of product 7
		reason   string
		want     string // in its error
	}
	cases := map[string]row{
		"DivisionByZero": {from: "p.name", to: "(1 / (p.id - 7))::text as name", status: "failed", reason: "deterministic_exception", want: "source query: 22012: division by zero"},
		"NaN":            {sql: "update shop.product set price = 'NaN' where id = 7", status: "failed", reason: "deterministic_exception", want: "field price: NaN is not a finite number"},
		"Infinity":       {from: "p.price", to: "case p.id when 7 then 'Infinity'::float8 else 1 end as price", status: "failed", reason: "deterministic_exception", want: "field price: +Inf is not a finite number"},
		"TwoRows": {from: "where p.id = any($1)", to: "join generate_series(1, 2) g on g = 1 or p.id = 7 where p.id = any($1)", status: "failed", reason: "deterministic_exception",
			want: "source query: it returned more than one row of this entity: group by the key, or filter"},
		"NoRow":     {from: "where p.id", to: "where p.id <> 7 and p.id", status: "done"},
		"NoVersion": {from: "v.version", to: "nullif(v.version, case p.id when 7 then v.version end) as version", status: "failed", reason: "deterministic_exception", want: "source query: version is null"},
		"Slow":      {from: "p.name", to: "case p.id when 7 then pg_sleep(120)::text else p.name end as name", timeout: "WEFT_DB_TIMEOUT=1s", status: "pending", reason: "db_", want: "the query was not answered in time (entities: 1); `weft projection check` looks for what makes it slow"},
		"MappingConflict": {from: "p.name", to: "case p.id when 7 then 'x' else '1' end as name", mapping: [2]string{`{"type": "text"}`, `{"type": "long"}`}, status: "failed", reason: "es_4xx",
			want: "failed to parse field [name] of type [long]"},
		"StrictMapping": {from: "'[]') as variants", to: "'[]') as variants, case p.id when 7 then '{\"x\": {\"y\": 1}}'::json end as extra", mapping: [2]string{`"properties": {`, `"properties": {"extra": {"properties": {"z": {"type": "long"}}}, `},
			status: "failed", reason: "es_4xx", want: "mapping set to strict, dynamic introduction of [x] within [extra] is not allowed"},
	}
	if testenv.Volume(0, 1) > 0 { // a quarter of a minute of CPU
		cases["HundredMegabytes"] = row{from: "p.name", to: "case p.id when 7 then repeat('0123456789', 10600000) else p.name end as name", status: "failed", reason: "es_4xx", want: "is too large for Elasticsearch or a proxy before it (413)"}
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newShop(t)
			if !strings.Contains(shopQuery, tc.from) {
				t.Fatalf("the query lacks %q", tc.from)
			}
			s.declare(strings.Replace(shopQuery, tc.from, tc.to, 1), strings.Replace(shopMapping, tc.mapping[0], tc.mapping[1], 1))
			if tc.sql != "" {
				s.exec(tc.sql + "; delete from product_outbox_events")
			}
			r := start(t, runDaemon, append(s.env, "OUTBOX_BASE_BACKOFF_SECONDS=0.1", "OUTBOX_MAX_BACKOFF_SECONDS=5", tc.timeout)...)
			s.exec("update shop.product set deleted_at = null, price = price where id <= 20; insert into shop.variant select i, i, 'S' from generate_series(1, 20) i")
			var status, reason, text string
			testenv.Eventually(t, func() bool {
				err := s.pool.QueryRow(t.Context(), "select status, coalesce(error_reason, ''), coalesce(error, '') from product_outbox_events where entity_id = 7").Scan(&status, &reason, &text)
				others := s.count("select count(*) from product_outbox_events where entity_id <> 7 and status = 'done'")
				return err == nil && status == tc.status && others == 19 && (reason != "" || tc.reason == "") && (status != "pending" || strings.Contains(text, tc.want))
			}, "the fate of the row, and of the others")
			if !strings.HasPrefix(reason, tc.reason) || !strings.Contains(text, tc.want) {
				t.Errorf("got %s, %q, want %s, %q", reason, text, tc.reason, tc.want)
			}
			r.signals <- syscall.SIGTERM
			if code := <-r.code; code != 0 || t.Failed() {
				t.Errorf("weft run ended with %d: %.3000s", code, r.errOut)
			}
		})
	}
}
