package projections

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/samuelhu324-dev/weft/outbox"
	"github.com/samuelhu324-dev/weft/projections/elastic"
)

// namingOf returns how the documents of a key of two columns are named, with a routing before
// the key when placed.
func namingOf(tb testing.TB, id string, placed bool, columns ...string) *naming {
	tb.Helper()
	d := Declaration{ID: id}
	k := &entityKey{kind: outbox.KindText, columns: columns, placed: placed}
	if placed {
		k.routing, d.Routing = "tenant", "tenant"
	}
	n, err := d.naming(k)
	if err != nil {
		tb.Fatal(err)
	}
	return n
}

func TestDocumentIDs(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name *naming
		id   outbox.ID
		want elastic.Doc
	}{
		{namingOf(t, "", false, "a", "b"), outbox.Composite("x:y", "50%"), elastic.Doc{ID: "x%3Ay:50%25"}},
		{namingOf(t, "{b}/{a}", false, "a", "b"), outbox.Composite("x:y", "5/0%"), elastic.Doc{ID: "5%2F0%25/x:y"}},
		{namingOf(t, "p-{a}-{b}!", false, "a", "b"), outbox.Composite("1-", "2"), elastic.Doc{ID: "p-1%2D-2!"}},
		{namingOf(t, "", true, "id"), outbox.Composite("t:1", "a:b%"), elastic.Doc{ID: "a:b%", Routing: "t:1"}},
		{namingOf(t, "p-{id}", true, "entity_id"), outbox.Composite("t", "a:b%"), elastic.Doc{ID: "p-a:b%", Routing: "t"}},
		{namingOf(t, "{tenant}:{id}", true, "id"), outbox.Composite("t:", "17"), elastic.Doc{ID: "t%3A:17", Routing: "t:"}},
		{namingOf(t, "", true, "a", "b"), outbox.Composite("t", "x:", "y"), elastic.Doc{ID: "x%3A:y", Routing: "t"}},
	} {
		if got := tc.name.doc(outbox.Key{ID: tc.id}); got != tc.want {
			t.Errorf("%s: got %+v, want %+v", tc.id, got, tc.want)
		}
	}
}

// The type of an entity stands before its id, whatever the type holds.
func TestDocumentIDsOfSeveralTypes(t *testing.T) {
	t.Parallel()
	d := Declaration{}
	n, err := d.naming(&entityKey{kind: outbox.KindUUID, columns: []string{"entity_type", "entity_id"}, typed: true})
	if err != nil {
		t.Fatal(err)
	}
	const id = "6ba7b810-9dad-11d1-80b4-00c04fd430c8"
	for _, kind := range []string{"block", "a:b", ""} {
		k := outbox.Key{Type: kind, ID: outbox.UUID(uuid.MustParse(id))}
		got := n.doc(k)
		if got.ID != kind+":"+id || got.Routing != "" {
			t.Errorf("%q: got %+v", kind, got)
		}
		if back, ours := n.entity(got); back != k || !ours {
			t.Errorf("%q: got %v, %t back", kind, back, ours)
		}
	}
	for _, text := range []string{id, "block:17", "block:" + strings.ToUpper(id), "a\x00b:" + id} {
		if k, ours := n.entity(elastic.Doc{ID: text}); !k.ID.IsZero() || !ours {
			t.Errorf("%s: got %v, %t, want no entity", text, k, ours)
		}
	}
}

// Whatever the keys, different ones make different ids that Elasticsearch takes.
func FuzzDocumentIDs(f *testing.F) {
	f.Add("a", "b:c", "a:b", "c")
	f.Add("50%", "", "50", "%")
	f.Add(strings.Repeat("é", 300), "x", strings.Repeat("é", 300), "y")
	names := []*naming{namingOf(f, "", false, "a", "b"), namingOf(f, "{b}|{a}", false, "a", "b"), namingOf(f, "p-{a}--{b}", false, "a", "b")}
	f.Fuzz(func(t *testing.T, a, b, c, d string) {
		for _, s := range []string{a, b, c, d} {
			if !utf8.ValidString(s) {
				return // no database has such a key
			}
		}
		for _, n := range names {
			one, other := n.doc(outbox.Key{ID: outbox.Composite(a, b)}).ID, n.doc(outbox.Key{ID: outbox.Composite(c, d)}).ID
			if (one == other) != (a == c && b == d) {
				t.Errorf("%q, %q is %q, and %q, %q is %q", a, b, one, c, d, other)
			}
			if len(one) > elastic.MaxIDBytes || !utf8.ValidString(one) {
				t.Errorf("%q, %q is %q of %d bytes", a, b, one, len(one))
			}
		}
	})
}

func TestLongDocumentIDsEndWithAHash(t *testing.T) {
	t.Parallel()
	n := namingOf(t, "p-{entity_id}", false, "entity_id")
	for _, size := range []int{255, 256, 600} {
		long := strings.Repeat("é", size)
		got := n.doc(outbox.Key{ID: outbox.Text(long)}).ID
		if whole := "p-" + long; len(whole) <= elastic.MaxIDBytes && got != whole {
			t.Errorf("%d bytes: got %q, want the id as it is", len(whole), got)
		} else if sum := sha256.Sum256([]byte(whole)); len(whole) > elastic.MaxIDBytes &&
			(!strings.HasPrefix(got, "p-é") || !strings.HasSuffix(got, "~"+hex.EncodeToString(sum[:])) || len(got) > elastic.MaxIDBytes || !utf8.ValidString(got)) {
			t.Errorf("%d bytes: got %q of %d bytes", len(whole), got, len(got))
		}
		if again := n.doc(outbox.Key{ID: outbox.Text(strings.TrimPrefix(got, "p-"))}).ID; again == got && size > 255 {
			t.Errorf("the id that is %q has the document of another", got)
		}
	}
}

func TestTemplatesThatAreRefused(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		id   string
		want string
	}{
		{"{a}{b}", "nothing separates {a} from {b}"}, {"{a}x{b}", "nothing separates"}, {"{a}%{b}", "nothing separates"}, {"{a}é{b}", "nothing separates"},
		{"a}", "a } without {"}, {"{", "want the name of a column"}, {"{}", "want the name of a column"}, {"{a{b}", "want the name of a column"},
		{"p", "names no column"}, {strings.Repeat("p", 101) + "{id}", "begins with 101 bytes: want at most 100"},
	} {
		d := products()
		d.ID = tc.id
		if err := d.Validate(); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%q: got %v, want %q", tc.id, err, tc.want)
		}
	}
	for id, want := range map[string]string{"{a}": "lacks column b of the key: two entities would share a document; add {b}", "{a}:{c}": "c is no column of the key: want a, b"} {
		d := Declaration{ID: id}
		if _, err := d.naming(&entityKey{kind: outbox.KindText, columns: []string{"a", "b"}}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %q", id, err, want)
		}
	}
}
