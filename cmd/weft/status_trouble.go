package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samuelhu324-dev/weft/internal/admin"
	"github.com/samuelhu324-dev/weft/internal/config"
	"github.com/samuelhu324-dev/weft/internal/daemon"
	"github.com/samuelhu324-dev/weft/internal/records"
	"github.com/samuelhu324-dev/weft/internal/verify"
	"github.com/samuelhu324-dev/weft/outbox"
)

// askTimeout bounds the question to the leader: its address may lead nowhere from this host.
const askTimeout = time.Second

// askLeader adds to st what the leader alone knows: which of its servers it cannot use, and which projections an outage or the
// breaker holds up. It is a hint, and left out where the leader does not answer from here.
func askLeader(ctx context.Context, st *records.Status) {
	if r, ok := leaderReport(ctx, *st); ok {
		st.Leader.Trouble = troubles(r)
	}
}

// leaderReport returns what the leader says of its readiness, where it answers from here.
func leaderReport(ctx context.Context, st records.Status) (admin.Report, bool) {
	if st.Leader == nil {
		return admin.Report{}, false
	}
	i := slices.IndexFunc(st.Instances, func(i records.Instance) bool { return i.Name == st.Leader.Instance })
	if i < 0 || st.Instances[i].HTTPAddr == "" {
		return admin.Report{}, false
	}
	client := &http.Client{Timeout: askTimeout, Transport: &http.Transport{Proxy: nil, DisableKeepAlives: true}}
	body, err := fetch(ctx, client, "http://"+st.Instances[i].HTTPAddr+"/health/ready")
	if err != nil {
		return admin.Report{}, false
	}
	var whole admin.Report
	if json.Unmarshal(body, &whole) != nil || whole.Instance != st.Leader.Instance {
		return admin.Report{}, false
	}
	for _, r := range append(whole.Shards, whole) {
		if r.Group == st.Group && r.Epoch == st.Leader.Epoch && len(r.Shards) == 0 {
			return r, true
		}
	}
	return admin.Report{}, false
}

// What a projection says that holds up no event.
const (
	stateMoved = "moved" // its index is another one, outside a rebuild
	stateRival = "rival" // a leader of another database writes into it, too
)

// troubles lists dependencies before projections. Where the shard is at home the command itself says.
func troubles(r admin.Report) []records.Trouble {
	out := []records.Trouble{}
	for _, name := range slices.Sorted(maps.Keys(r.Dependencies)) {
		if d := r.Dependencies[name]; !d.OK && name != daemon.HomeName {
			t := records.Trouble{Of: name, State: "unusable", Detail: d.Error, Since: d.Since}
			if t.Detail == t.State { // what another host is told
				t.Detail = ""
			}
			out = append(out, t)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(r.Projections)) {
		p := r.Projections[name]
		if p.Activity == admin.Outage || p.Activity == admin.Paused {
			out = append(out, records.Trouble{Of: name, State: string(p.Activity), Detail: p.Detail, Since: p.Since})
		}
		if p.Moved != nil {
			out = append(out, records.Trouble{Of: name, State: stateMoved, Detail: p.Moved.Detail, Since: p.Moved.Since})
		}
		if p.Rival != nil {
			out = append(out, records.Trouble{Of: name, State: stateRival, Detail: p.Rival.Detail, Since: p.Rival.Since})
		}
	}
	return out
}

// holdsUp says what keeps events from being settled: what operators hold back, and what the leader tells.
func holdsUp(ctx context.Context, cfg config.Config, pool *pgxpool.Pool, reports []verify.Report) string {
	const see = "see `weft status` for what holds them up"
	ctx, cancel := context.WithTimeout(ctx, preflightTimeout)
	defer cancel()
	st, err := records.ReadElection(ctx, pool, cfg.Group)
	if err != nil {
		return see
	}
	askLeader(ctx, &st)
	if st.Leader == nil {
		return nobodyLeads(st.Group)
	}
	said := heldBack(ctx, cfg, pool, reports)
	holding := slices.DeleteFunc(st.Leader.Trouble, func(t records.Trouble) bool { return t.State == stateMoved || t.State == stateRival })
	for i, t := range holding {
		line := strings.Join(describeTrouble(t), " ")
		if i == 0 {
			line = "the leader says: " + line
		}
		said = append(said, line)
	}
	if len(said) == 0 {
		return see
	}
	return strings.Join(said, "; ") + "; mend that, then compare again"
}

// heldBack says what operators hold back of projections with events that did not settle.
func heldBack(ctx context.Context, cfg config.Config, pool *pgxpool.Pool, reports []verify.Report) (said []string) {
	for i := range reports {
		name := reports[i].Projection
		if reports[i].Unsettled == 0 {
			continue
		}
		h, err := outbox.ReadHolds(ctx, pool, cfg.Group, name, cfg.Database.Timeout)
		if err != nil {
			continue
		}
		if h.Pause != nil {
			said = append(said, fmt.Sprintf("%s is %s; `weft resume %[1]s` ends it", name, records.DescribePause(h.Pause).Line()))
		}
		if n := len(h.Quarantines); n > 0 {
			said = append(said, fmt.Sprintf("%s has %s in quarantine until `weft release TYPE:ID`", name, records.Counted(n, "1 entity", "%d entities")))
		}
		if h.Throttle != nil {
			said = append(said, fmt.Sprintf("%s is %s; `weft throttle %[1]s --off` ends it", name, records.DescribeThrottle(h.Throttle).Line()))
		}
	}
	return said
}

func nobodyLeads(group string) string {
	return "nobody leads group " + group + ": start `weft run`, or look at the log of the instances"
}

// describeTrouble returns the word for what is wrong, and the rest.
func describeTrouble(t records.Trouble) []string {
	word := strings.ToUpper(t.State)
	if t.State == string(admin.Paused) {
		word = "BREAKER"
	}
	return []string{word, fmt.Sprintf("%s since %s: %s", records.Plain(t.Of), t.Since.UTC().Format(time.RFC3339), cmp.Or(records.Plain(t.Detail), "see the leader's log"))}
}

func writeTroubles(w io.Writer, st records.Status) {
	if st.Leader == nil {
		return
	}
	for _, t := range st.Leader.Trouble {
		fmt.Fprintf(w, "\n%s\n", strings.Join(describeTrouble(t), "  "))
	}
}
