package migrations_test

import (
	"context"
	"strings"
	"testing"

	"github.com/google/uuid"
)

// An application without any right on the outbox learns whether its event is settled, and nothing
// else; without the right to execute the function it learns nothing.
func TestSettledFunction(t *testing.T) {
	t.Parallel()
	s := newShop(t, 1)
	s.exec(`create role app_` + strings.ReplaceAll(uuid.NewString(), "-", "") + ` nologin`)
	role := one[string](t, s.pool, `select rolname::text from pg_roles where rolname like 'app\_%' order by oid desc limit 1`)
	t.Cleanup(func() {
		if _, err := s.pool.Exec(context.Background(), `drop owned by `+role+`; drop role `+role); err != nil {
			t.Errorf("drop role: %v", err)
		}
	})
	ids := map[string]string{}
	for _, status := range []string{"pending", "processing", "done", "failed"} {
		ids[status] = one[string](t, s.pool, `insert into search_outbox_events (id, entity_type, entity_id, op, event_version, status)
			values (gen_random_uuid(), 'block', gen_random_uuid(), 'upsert', 1, $1) returning id::text`, status)
	}
	made := one[string](t, s.pool, `select weft_enqueue('product_outbox_events', null, '1', 'upsert')::text`)
	conn, err := s.pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	ask := func(args ...any) (out *string, err error) {
		err = conn.QueryRow(t.Context(), `select weft_settled($1, $2)`, args...).Scan(&out)
		return out, err
	}
	s.exec(`grant usage on schema public to ` + role)
	if _, err := conn.Exec(t.Context(), `set role `+role); err != nil {
		t.Fatal(err)
	}
	if _, err := ask("search_outbox_events", ids["done"]); err == nil || !strings.Contains(err.Error(), "permission denied for function weft_settled") {
		t.Errorf("without the right: got %v, want a refusal", err)
	}
	s.exec(`grant execute on function weft_settled to ` + role)
	if _, err := conn.Exec(t.Context(), `select status from search_outbox_events`); err == nil {
		t.Error("the role reads the outbox, want no right on it")
	}
	for id, want := range map[string]string{ids["pending"]: "", ids["processing"]: "", ids["done"]: "done", ids["failed"]: "failed", uuid.NewString(): "gone"} {
		got, err := ask("search_outbox_events", id)
		if err != nil || want == "" && got != nil || want != "" && (got == nil || *got != want) {
			t.Errorf("%s: got %v, %v, want %q", id, got, err, want)
		}
	}
	if got, err := ask("product_outbox_events", made); got != nil || err != nil {
		t.Errorf("an outbox that was made: got %v, %v, want null", got, err)
	}
	for want, args := range map[string][]any{
		"weft_audit is no outbox table that weft knows": {"weft_audit", "1"},
		"null is no outbox table":                       {nil, "1"},
		"invalid input syntax for type uuid":            {"search_outbox_events", "x"},
	} {
		if _, err := ask(args...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: got %v, want %q", args, err, want)
		}
	}
	if _, err := conn.Exec(t.Context(), `reset role`); err != nil {
		t.Fatal(err)
	}
}
