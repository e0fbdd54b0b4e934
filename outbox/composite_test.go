package outbox_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samuelhu324-dev/weft/outbox"
)

var hostileParts = []string{"", "a", ":", "%", "%25", "%3A", "%3a", "::", "a:b", `a'b"c\`, "50%/x?y#z", "日本 🎉", "%253A", "\n\t", strings.Repeat("é%:", 170)}

// TestCompositeIDsReadAsTheyAreWritten, by Go and by PostgreSQL, and no two of them are equal.
func TestCompositeIDsReadAsTheyAreWritten(t *testing.T) {
	t.Parallel()
	pool := setup(t).pool
	seen := map[outbox.ID][]string{}
	for _, a := range hostileParts {
		for _, b := range hostileParts {
			parts := []string{a, b}
			id := outbox.Composite(parts...)
			if other, ok := seen[id]; ok {
				t.Errorf("%q and %q are both %s", parts, other, id)
			}
			seen[id] = parts
			wantComposite(t, pool, parts)
		}
	}
}

func wantComposite(t *testing.T, pool *pgxpool.Pool, parts []string) {
	t.Helper()
	id := outbox.Composite(parts...)
	if got := id.Parts(); !slices.Equal(got, parts) {
		t.Errorf("%q is written as %s and read as %q", parts, id, got)
	}
	var text string
	var read []string
	err := pool.QueryRow(t.Context(), `select string_agg(weft_part(p), ':' order by n) from unnest($1::text[]) with ordinality as t(p, n)`, parts).Scan(&text)
	if err != nil || text != id.String() {
		t.Errorf("%q: PostgreSQL writes %s, %v, Go writes %s", parts, text, err, id)
	}
	if err := pool.QueryRow(t.Context(), `select array(select weft_part_of($1, n) from generate_series(1, $2::int) n order by n)`, text, len(parts)).Scan(&read); err != nil || !slices.Equal(read, parts) {
		t.Errorf("%s: PostgreSQL reads %q, %v, want %q", text, read, err, parts)
	}
}

func FuzzComposite(f *testing.F) {
	for _, p := range hostileParts {
		f.Add(p, "17", p)
	}
	f.Fuzz(func(t *testing.T, a, b, c string) {
		parts := []string{a, b, c}
		if got := outbox.Composite(parts...).Parts(); !slices.Equal(got, parts) {
			t.Errorf("%q is read as %q", parts, got)
		}
	})
}
