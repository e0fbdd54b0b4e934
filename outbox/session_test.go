package outbox_test

import (
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/outbox"
)

// A statement that has waited for a lock must see what the holder has done, whatever
// isolation the database was told to use by default.
func TestSessionParamsWinOverTheDatabase(t *testing.T) {
	t.Parallel()
	url := testenv.Database(t)
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(t.Context()) }()
	for name, value := range map[string]string{"default_transaction_isolation": "repeatable read", "enable_sort": "on"} {
		_, err := conn.Exec(t.Context(), "do $$ begin execute format('alter database %I set "+name+" = %L', current_database(), '"+value+"'); end $$")
		if err != nil {
			t.Fatal(err)
		}
	}
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range outbox.SessionParams() {
		cfg.ConnConfig.RuntimeParams[name] = value
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	var isolation, sort string
	err = pool.QueryRow(t.Context(), "select current_setting('transaction_isolation'), current_setting('enable_sort')").Scan(&isolation, &sort)
	if err != nil || isolation != "read committed" || sort != "off" {
		t.Errorf("isolation %q, enable_sort %q, %v, want read committed and off", isolation, sort, err)
	}
}
