package demo

import (
	"context"
	"fmt"
	"io"
	"net/url"
	"path/filepath"
	"strings"
	"text/tabwriter"
)

// detach leaves the servers to themselves.
func (r *run) detach(ctx context.Context) error {
	if r.place.stack == nil {
		return nil
	}
	return r.place.stack.Detach(ctx, r.stateFile())
}

// stateFile is not that of `weftlab stack up`, so that both can be up.
func (r *run) stateFile() string { return filepath.Join(r.dir, "stack.json") }

// lookAround says what can be done with what --keep has left.
func (r *run) lookAround(w io.Writer, leader string) {
	database, elastic := shown(r.place.databaseURL), strings.TrimRight(shown(r.place.elasticURL), "/")
	env := fmt.Sprintf("DATABASE_URL='%s' WEFT_GROUP=%s", database, r.place.group)
	fmt.Fprintln(w, "\nEverything is still up. To look around:")
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	row := func(what, how string) { fmt.Fprintf(tw, "  %s\t%s\n", what, how) }
	row("state", env+" "+r.fleet.Binary+" status")
	row("rows", fmt.Sprintf("psql '%s' -c 'select entity_type, snippet from search_index limit 5'", database))
	row("events", fmt.Sprintf("psql '%s' -c 'select status, count(*) from %s group by 1'", database, outboxTable))
	row("record", fmt.Sprintf("psql '%s' -c 'select * from weftlab_history order by seq desc limit 20'", database))
	row("search", fmt.Sprintf("curl -s '%s/%s/_search?q=text:deadline&size=3&pretty'", elastic, r.place.index))
	var pids []string
	for _, name := range []string{"a", "b"} {
		i := r.instances[name]
		row("instance "+name, fmt.Sprintf("curl -s %s; curl -s %s; tail -f %s", i.URL("/health/ready"), i.URL("/metrics"), i.Log))
		pids = append(pids, fmt.Sprint(i.PID))
	}
	if i := r.instances[leader]; i != nil {
		row("takeover", fmt.Sprintf("kill -9 %d   # %s leads; look at the state again", i.PID, leader))
	}
	stop := "kill " + strings.Join(pids, " ")
	if r.place.stack != nil {
		stop += "; go run ./cmd/weftlab stack down --state " + r.stateFile()
	}
	if r.place.schema != "" {
		stop += fmt.Sprintf("; psql '%s' -c 'drop schema %s cascade'", shown(r.place.base), r.place.schema)
	}
	if r.place.stack == nil || r.place.index != "weft-demo" {
		stop += fmt.Sprintf("; curl -X DELETE '%s/%s-v1'", elastic, r.place.index)
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
