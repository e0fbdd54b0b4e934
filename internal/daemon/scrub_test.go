package daemon_test

import (
	"net/http"
	"net/url"
	"testing"

	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/outbox"
)

// A leader goes on among the documents where the one before was interrupted: it looks at no row again, and at no document
// before that position.
func TestLeaderGoesOnAmongDocuments(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.upsert(newKey(), 1, "text")
	a := r.start("a")
	r.await(map[string]int{"done": 1})
	if err := a.stop(); err != nil {
		t.Fatal(err)
	}
	r.elasticCall(http.MethodPut, "/"+r.index+"/_doc/"+url.PathEscape(newKey().String())+"?refresh=true", `{}`, nil) // without a row
	var settings map[string]struct {
		Settings map[string]string `json:"settings"`
	}
	r.elasticCall(http.MethodGet, "/"+r.index+"/_settings/index.uuid?flat_settings", "", &settings)
	for _, index := range settings {
		r.exec("insert into weft_verify values ($1, $2, '', '', $3, now(), now())", searchProjection, outbox.VerifyScrub,
			`{"rows": 500, "equal": 500, "documents": 500, "at": "2-2/1 of `+index.Settings["index.uuid"]+`"}`)
	}
	r.start("b")
	testenv.Eventually(t, func() bool { return r.number("select count(*) from weft_verify where finished_at is not null") == 1 }, "the end of the comparison")
	if n := r.number("select count(*) from weft_verify where report ->> 'rows' = '500' and report ->> 'extra' = '0' and report ->> 'at' is null"); n != 1 {
		t.Error("rows, or documents before the position, were looked at again")
	}
}

// A document is counted once, when its fate is known: one that differs was never equal.
func TestLeaderCountsEachDocumentOnce(t *testing.T) {
	t.Parallel()
	r := setup(t)
	first := newKey()
	r.upsert(first, 1, "text")
	for range 49 {
		r.upsert(newKey(), 1, "text")
	}
	a := r.start("a", "WEFT_VERIFY_REPAIR=off")
	r.await(map[string]int{"done": 50})
	if err := a.stop(); err != nil {
		t.Fatal(err)
	}
	r.elasticCall(http.MethodDelete, "/"+r.index+"/_doc/"+url.PathEscape(first.String())+"?refresh=true", "", nil)
	r.exec("create function late() returns trigger language plpgsql as $$ begin perform pg_sleep(0.7); return new; end $$") // a busy server
	r.exec("create trigger late before update on weft_verify for each row when (new.finished_at is not null) execute function late()")
	r.exec("insert into weft_verify values ($1, $2, '', '', '{}', now(), now())", searchProjection, outbox.VerifyScrub) // begins at once
	b := r.start("b")
	testenv.Eventually(t, func() bool { return r.number("select count(*) from weft_verify where finished_at is not null") == 1 }, "the end of the comparison")
	equal := b.metric("weft_verify_documents_total", searchProjection, `result="equal"`)
	missing := b.metric("weft_verify_documents_total", searchProjection, `result="missing"`)
	if all := b.metric("weft_verify_documents_total", searchProjection); equal != 49 || missing != 1 || all != 50 {
		t.Errorf("%v equal, %v missing of %v, want 49 and 1 of 50", equal, missing, all)
	}
}
