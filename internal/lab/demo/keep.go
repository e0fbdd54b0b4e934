package demo

import (
	"context"
	"fmt"
	"io"
	"net/url"
	"path/filepath"
	"strings"
	"text/tabwriter"

	"github.com/samuelhu324-dev/weft/internal/lab/rig"
)

// detach leaves the servers to themselves.
func (r *run) detach(ctx context.Context) error {
	if r.Servers == nil {
		return nil
	}
	return r.Servers.Detach(ctx, r.stateFile())
}

// stateFile is not that of `weftlab stack up`, so that both can be up.
func (r *run) stateFile() string { return filepath.Join(r.dir, "stack.json") }

// lookAround says what can be done with what --keep has left.
func (r *run) lookAround(w io.Writer, leader string) {
	database, elastic := shown(r.DatabaseURL), strings.TrimRight(shown(r.ElasticURL), "/")
	env := fmt.Sprintf("DATABASE_URL='%s' WEFT_GROUP=%s", database, r.Place.Group)
	fmt.Fprintln(w, "\nEverything is still up. To look around:")
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	row := func(what, how string) { fmt.Fprintf(tw, "  %s\t%s\n", what, how) }
	row("state", env+" "+r.Fleet.Binary+" status")
	row("rows", fmt.Sprintf("psql '%s' -c 'select entity_type, snippet from search_index limit 5'", database))
	row("events", fmt.Sprintf("psql '%s' -c 'select status, count(*) from %s group by 1'", database, rig.Outbox))
	row("record", fmt.Sprintf("psql '%s' -c 'select * from weftlab_history order by seq desc limit 20'", database))
	row("search", fmt.Sprintf("curl -s '%s/%s/_search?q=text:deadline&size=3&pretty'", elastic, r.Index))
	var pids []string
	for _, m := range r.Members() {
		i := m.Instance()
		row("instance "+m.Name, fmt.Sprintf("curl -s %s; curl -s %s; tail -f %s", i.URL("/health/ready"), i.URL("/metrics"), i.Log))
		pids = append(pids, fmt.Sprint(i.PID))
	}
	if m := r.Member(leader); m != nil {
		row("takeover", fmt.Sprintf("kill -9 %d   # %s leads; look at the state again", m.Instance().PID, leader))
	}
	stop := "kill " + strings.Join(pids, " ")
	if r.Servers != nil {
		stop += "; go run ./cmd/weftlab stack down --state " + r.stateFile()
	}
	if r.Schema != "" {
		stop += fmt.Sprintf("; psql '%s' -c 'drop schema %s cascade'", shown(r.base.DatabaseURL), r.Schema)
	}
	if !r.Started.Elastic {
		stop += fmt.Sprintf("; curl -X DELETE '%s/%s-v1'", elastic, r.Index)
	}
	row("stop", stop+"; rm -r "+r.dir)
	_ = tw.Flush()
}

// shown is a URL without its password.
func shown(raw string) string {
	u, err := url.Parse(raw)
	if err != nil {
		return "…"
	}
	return u.Redacted()
}
