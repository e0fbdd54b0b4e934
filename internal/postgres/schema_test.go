package postgres_test

import (
	"testing"

	"github.com/samuelhu324-dev/weft/internal/postgres"
)

func TestInSchema(t *testing.T) {
	t.Parallel()
	for raw, host := range map[string]string{
		"postgres://a:b%40c@h:5432/d":                              "h",
		"postgresql+psycopg://a@h/d?search_path=x&sslmode=disable": "h",
		"postgres://a@h:1,i:2/d?sslmode=disable":                   "h",
		"host=h user=a dbname=d search_path=x":                     "h",
	} {
		got, err := postgres.InSchema(raw, "shard_1")
		if err != nil {
			t.Fatalf("%s: %v", raw, err)
		}
		cfg, err := postgres.ParseURL(got)
		if err != nil {
			t.Fatalf("%s: %v", got, err)
		}
		if cc := cfg.ConnConfig; cc.RuntimeParams["search_path"] != "shard_1" || cc.Host != host || cc.User != "a" || cc.Database != "d" {
			t.Errorf("%s: got %s: %s of %s at %s, with search_path %q", raw, got, cc.Database, cc.User, cc.Host, cc.RuntimeParams["search_path"])
		}
	}
	// A space in a parameter is %20: + is a plus sign.
	const schema = `"My App's \ schema"`
	for _, raw := range []string{"postgres://a@h/d?options=-c%20geqo%3Doff&application_name=a%2Bb+c", "host=h user=a dbname=d options='-c geqo=off' application_name=a+b+c"} {
		got, err := postgres.InSchema(raw, schema)
		if err != nil {
			t.Fatalf("%s: %v", raw, err)
		}
		cfg, err := postgres.ParseURL(got)
		if err != nil {
			t.Fatalf("%s: %v", got, err)
		}
		for name, want := range map[string]string{"search_path": schema, "options": "-c geqo=off", "application_name": "a+b+c"} {
			if have := cfg.ConnConfig.RuntimeParams[name]; have != want {
				t.Errorf("%s: got %s, with %s %q, want %q", raw, got, name, have, want)
			}
		}
	}
	if _, err := postgres.InSchema("mysql://h/d", "shard_1"); err == nil {
		t.Error("a URL of another kind: got no error")
	}
}
