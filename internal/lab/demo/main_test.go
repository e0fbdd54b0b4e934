package demo

import (
	"os"
	"testing"

	"github.com/samuelhu324-dev/weft/internal/lab/rig"
	"github.com/samuelhu324-dev/weft/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// On servers of the user the demo keeps to itself.
func TestCornerOnTheUsersServers(t *testing.T) {
	t.Parallel()
	r := &run{Group: &rig.Group{}, opts: Options{DatabaseURL: os.Getenv("DATABASE_URL"), ElasticURL: testenv.ElasticURL(t)}}
	if err := r.open(t.Context()); err != nil {
		t.Fatal(err)
	}
	c := r.Place
	if c.Servers != nil || c.Group == "weft" || c.Index == ownIndex || c.Schema == "" {
		t.Errorf("got servers %v, group %q, index %q, schema %q: want names of its own", c.Servers, c.Group, c.Index, c.Schema)
	}
	if err := r.close(t.Context()); err != nil {
		t.Errorf("close: %v", err)
	}
}
