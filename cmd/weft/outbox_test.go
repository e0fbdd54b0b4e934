package main

import (
	"context"
	"encoding/json"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/migrations"
)

// The printed SQL is held as a golden file, so that a change of it is read before it is run
// on somebody's tables; what it does is tested in package migrations.
func TestOutbox(t *testing.T) {
	t.Parallel()
	dsn := testenv.Database(t)
	env := []string{"DATABASE_URL=" + dsn}
	owner := testenv.Pool(t, dsn)
	if _, err := owner.Exec(t.Context(), `create schema shop; create table shop.product (id bigint primary key, name text);
		create table shop.variant (product_id bigint references shop.product, sku text); create table shop.photo (product_id bigint)`); err != nil {
		t.Fatal(err)
	}
	create := []string{"outbox", "create", "--table", "shop.product", "--children", "shop.variant:product_id"}
	printed := weft(t, env, create...)
	if want := "weft: warning: no index of shop.variant begins with \"product_id\""; printed.code != 0 || !strings.HasPrefix(printed.errOut, want) || strings.Count(printed.errOut, "\n") != 1 {
		t.Fatalf("create: got %+v, want %q on standard error", printed, want)
	}
	golden(t, "outbox-create.sql", printed.out)
	more := weft(t, env, slices.Concat(create, []string{"--children", "shop.photo:product_id", "--key", "id"})...).out
	for _, table := range []string{"product", "variant", "photo"} {
		if !strings.Contains(more, "after insert on shop."+table+" ") {
			t.Errorf("with --children twice: no trigger on %s: %s", table, more)
		}
	}
	if empty := weft(t, env, "outbox", "list"); empty.out != "no outbox: weft outbox create makes one\n" {
		t.Errorf("list before: got %+v", empty)
	}
	if r := weft(t, []string{"DATABASE_URL=" + testenv.Schema(t)}, "outbox", "list"); r.code != exitTryAgain || !strings.Contains(r.errOut, "weft's tables are missing from schema ") {
		t.Errorf("list where weft was never installed: got %+v, want code %d", r, exitTryAgain)
	}
	if r := weft(t, env, append(create, "--apply")...); r.code != 0 || r.out != "created product_outbox_events\n" {
		t.Fatalf("create --apply: got %+v", r)
	}
	if r := weft(t, env, create...); r.code != exitRefused || !strings.Contains(r.errOut, "weft: product_outbox_events is there already: `weft migrate up` finishes it") {
		t.Errorf("create again: got %+v, want code %d", r, exitRefused)
	}
	if r := weft(t, env, "migrate", "down"); r.code != 0 {
		t.Errorf("down from the last version: got %+v", r)
	}
	if r := weft(t, env, "migrate", "down"); r.code != exitRefused || !strings.Contains(r.errOut, "run `weft outbox drop --name product_outbox_events` first") {
		t.Errorf("down: got %+v, want code %d", r, exitRefused)
	}
	if r := weft(t, env, "migrate", "up"); r.code != 0 {
		t.Fatalf("up again: got %+v", r)
	}
	if _, err := owner.Exec(t.Context(), `insert into shop.product values (1), (2); update product_outbox_events set status = 'failed' where entity_id = 2`); err != nil {
		t.Fatal(err)
	}
	if r := weft(t, env, "outbox", "list"); r.out != "NAME                   ENTITY TYPE  SOURCE        OPEN\nproduct_outbox_events  product      shop.product  1\n" {
		t.Errorf("list: got %+v", r)
	}
	var rows []outboxRow
	r := weft(t, env, "outbox", "list", "--json")
	want := []outboxRow{{"product_outbox_events", "product", "shop.product", 1}}
	if err := json.Unmarshal([]byte(r.out), &rows); err != nil || !slices.Equal(rows, want) {
		t.Errorf("list --json: got %s, %v, want %+v", r.out, err, want)
	}

	golden(t, "outbox-drop.sql", weft(t, env, "outbox", "drop", "--table", "shop.product").out)
	drop := []string{"outbox", "drop", "--name", "product_outbox_events", "--apply"}
	if r := weft(t, env, drop...); r.code != exitRefused || !strings.Contains(r.errOut, "weft: product_outbox_events has events that are not done: ") {
		t.Errorf("drop: got %+v, want code %d", r, exitRefused)
	}
	if r := weft(t, env, append(drop, "--force")...); r.code != 0 || r.out != "dropped product_outbox_events\n" {
		t.Errorf("drop --force: got %+v", r)
	}
	if r := weft(t, env, drop...); r.code != exitRefused || !strings.Contains(r.errOut, "product_outbox_events has no outbox that weft knows") {
		t.Errorf("drop again: got %+v, want code %d", r, exitRefused)
	}
}

// A server that quotes all names that it writes is one like others.
func TestOutboxWhereAllNamesAreQuoted(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.exec("do $$ begin execute format('alter database %I set quote_all_identifiers = on', current_database()); end $$")
	s.exec("create table shop.supplier (id bigint primary key, name text)")
	for _, args := range [][]string{{"outbox", "create", "--table", "shop.supplier", "--apply"}, {"projection", "check", "products"}, {"migrate", "status"}} {
		if r := weft(t, s.env, args...); r.code != 0 {
			t.Errorf("%v: %+v", args, r)
		}
	}
	s.running()
	s.exec("update shop.product set name = 'lamp'")
	s.settled()
	s.verified(0)
}

func TestOutboxRefusals(t *testing.T) {
	t.Parallel()
	url := testenv.Schema(t)
	for _, tc := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"create"}, exitUsage, "want the table, with --table"},
		{[]string{"create", "--table=x", "--children=y"}, exitUsage, `want TABLE:COLUMN pairs, not "y"`},
		{[]string{"create", "--table=x", "--children=y:z,"}, exitUsage, `want TABLE:COLUMN pairs, not ""`},
		{[]string{"drop"}, exitUsage, "want either --table or --name"},
		{[]string{"drop", "--table=x", "--name=y"}, exitUsage, "want either --table or --name"},
		{[]string{"create", "--table=x"}, exitTryAgain, "run `weft migrate up`"},
		{[]string{"drop", "--table=x"}, exitTryAgain, "run `weft migrate up`"},
	} {
		r := weft(t, []string{"DATABASE_URL=" + url}, append([]string{"outbox"}, tc.args...)...)
		if r.code != tc.code || !strings.Contains(r.errOut, tc.want) || r.out != "" {
			t.Errorf("%v: got %+v, want %d and %q", tc.args, r, tc.code, tc.want)
		}
	}
}

func TestParseChildren(t *testing.T) {
	t.Parallel()
	for text, want := range map[string][]migrations.Child{
		"":                             nil,
		"shop.variant:product_id":      {{Table: "shop.variant", Columns: []string{"product_id"}}},
		"a:b, c.d:E":                   {{Table: "a", Columns: []string{"b"}}, {Table: "c.d", Columns: []string{"E"}}},
		"a.b:x,y,c:z":                  {{Table: "a.b", Columns: []string{"x", "y"}}, {Table: "c", Columns: []string{"z"}}},
		`"a,b"."c:d":"the ""key"": x"`: {{Table: `"a,b"."c:d"`, Columns: []string{`the "key": x`}}},
	} {
		got, err := parseChildren(text)
		if err != nil || !cmp.Equal(got, want) {
			t.Errorf("%s: got %+v, %v, want %+v", text, got, err, want)
		}
	}
}

// The owner of all gives weft's role what a projection reads: the versions and the source.
func TestMigrateGrantCoversCreatedOutboxes(t *testing.T) {
	t.Parallel()
	dsn := testenv.Database(t)
	owner := testenv.Pool(t, dsn)
	if _, err := owner.Exec(t.Context(), `create schema shop; create table shop.product (id bigint primary key)`); err != nil {
		t.Fatal(err)
	}
	env := []string{"DATABASE_URL=" + dsn}
	if r := weft(t, env, "outbox", "create", "--table=shop.product", "--apply"); r.code != 0 {
		t.Fatalf("create: %+v", r)
	}
	user := testenv.Runner(t, dsn).Username()
	if r := weft(t, env, "migrate", "grant", user); r.code != 0 || r.errOut != "" {
		t.Fatalf("grant: %+v", r)
	}
	var may bool
	if err := owner.QueryRow(t.Context(), `select has_table_privilege($1, 'product_outbox_versions', 'select') and has_table_privilege($1, 'shop.product', 'select')
		and has_table_privilege($1, 'product_outbox_events_live', 'select') and not has_table_privilege($1, 'product_outbox_events', 'insert')`, user).Scan(&may); err != nil || !may {
		t.Errorf("rights after the grant: got %v, %v", may, err)
	}
}

// A role that may not read which outboxes there are is not told that there is none.
func TestOutboxListWithoutRights(t *testing.T) {
	t.Parallel()
	dsn := testenv.Database(t)
	role := testenv.Runner(t, dsn)
	if _, err := testenv.Pool(t, dsn).Exec(t.Context(), "revoke select on weft_outbox from "+role.Username()); err != nil {
		t.Fatal(err)
	}
	r := weft(t, []string{"DATABASE_URL=" + testenv.As(t, dsn, role)}, "outbox", "list")
	if r.code != exitRefused || !strings.Contains(r.errOut, "permission denied for table weft_outbox") {
		t.Errorf("got %+v, want code %d", r, exitRefused)
	}
}

// An interrupted command names what finishes it: once the outbox is made, that is another one.
func TestInterruptedOutboxCreate(t *testing.T) {
	t.Parallel()
	dsn := testenv.Database(t)
	pool := testenv.Pool(t, dsn)
	if _, err := pool.Exec(t.Context(), "create schema shop; create table shop.product (id bigint primary key)"); err != nil {
		t.Fatal(err)
	}
	unlock := testenv.Lock(t, dsn, "weft_lease") // of a view that tells of it
	ctx, interrupt := context.WithCancel(t.Context())
	var errOut buffer
	a := &app{environ: []string{"DATABASE_URL=" + dsn}, stdin: strings.NewReader(""), stdout: io.Discard, stderr: &errOut, signals: notify}
	code := make(chan int, 1)
	go func() { code <- a.execute(ctx, strings.Fields("outbox create --table shop.product --apply")) }()
	testenv.Eventually(t, func() bool {
		var made bool
		err := pool.QueryRow(t.Context(), "select exists (select from weft_outbox)").Scan(&made)
		return err == nil && made
	}, "the outbox is made")
	interrupt()
	if got := <-code; got != exitTryAgain || !strings.HasSuffix(errOut.String(), "run `weft migrate up` to finish\n") {
		t.Errorf("got code %d and %q", got, errOut.String())
	}
	unlock()
	if r := weft(t, a.environ, "migrate", "up"); r.code != 0 {
		t.Errorf("migrate up: got %+v", r)
	}
}
