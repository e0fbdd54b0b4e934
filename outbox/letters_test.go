package outbox_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/outbox"
)

// What is kept as JSON may name documents, whose ids have any letter. Those that the database lacks are question
// marks, and all others stay; so it is with what JSON escapes.
func TestKeptTextsInADatabaseThatLacksCharacters(t *testing.T) {
	t.Parallel()
	const said, utf8, latin1 = "é \\u0041 名 \ufffd\u2028\u2029", "é \\u0041 名 \ufffd\u2028\u2029", "? \\u0041 ? ???"
	for encoding, want := range map[string]map[string]string{
		"UTF8":   {said: utf8, "café": "café", "NUL \x00": "NUL ?"},
		"LATIN1": {said: latin1, "café": "café", "NUL \x00": "NUL ?"},
	} {
		b := &bench{t: t, pool: testenv.Pool(t, testenv.DatabaseIn(t, encoding)+"&client_encoding=UTF8")}
		events, err := outbox.OpenFinishedEvents(t.Context(), b.pool, table, time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		mender, err := outbox.OpenMender(t.Context(), b.pool, table, "p", time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		for text, want := range want {
			type outcome struct{ Said string }
			kept := func(what, sql string) {
				t.Helper()
				var got outcome
				if err := b.pool.QueryRow(t.Context(), sql).Scan(&got); err != nil || got.Said != want {
					t.Errorf("%s of %q in %s: got %q, %v, want %q", what, text, encoding, got.Said, err, want)
				}
			}
			v, err := outbox.BeginVerify(t.Context(), b.pool, "p", outbox.VerifyCommand, false, time.Minute)
			if err != nil {
				t.Fatal(err)
			}
			if err := v.Save(t.Context(), outbox.Key{}, outcome{text}, true); err != nil {
				t.Error(err)
			}
			kept("report", "select report from weft_verify")
			detail, err := json.Marshal(outcome{text})
			if err != nil {
				t.Fatal(err)
			}
			id, err := events.BeginPruning(t.Context(), outbox.AuditEntry{Actor: "a", Why: "b", Detail: detail})
			if err != nil {
				t.Fatal(err)
			}
			const newest = "select detail from weft_audit order by id desc limit 1"
			kept("detail", newest)
			if err := events.EndPruning(t.Context(), id, 0, outcome{text}); err != nil {
				t.Error(err)
			}
			kept("outcome", newest)
			if err := mender.Mend(t.Context(), []outbox.Order{{Key: b.enqueue(1), Op: outbox.Upsert, Version: 2}}, "a", "b", outcome{text}); err != nil {
				t.Error(err)
			}
			kept("repair", newest)
		}
	}
}
