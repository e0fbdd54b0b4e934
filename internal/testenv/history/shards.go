package history

import (
	"fmt"

	"github.com/samuelhu324-dev/weft/internal/testenv/reconcile"
	"github.com/samuelhu324-dev/weft/outbox"
)

// Deal returns the part of r that each shard has, with its record of logs. home says which shard an
// entity belongs to. What is known of an entity without a home, such as a document that nobody
// wrote, is for the first shard to answer for.
func Deal(r Run, logs []*Log, home map[outbox.Key]int) []Run {
	out := make([]Run, len(logs))
	leaders := map[string]bool{}
	for n, log := range logs {
		out[n] = Run{Log: log, Crashes: r.Crashes, Alias: r.Alias, Index: r.Index, Shard: n, Home: home, leaders: leaders}
		for _, l := range log.Leases {
			leaders[l.Owner] = true
		}
		if r.Applied != nil {
			out[n].Applied = []Applied{} // nothing was sent, and that was recorded
		}
		if r.End != nil {
			out[n].End = &End{Compared: &reconcile.Report{}, Documents: map[string]int64{}}
		}
	}
	for _, a := range r.Acknowledged {
		part := &out[home[a.Key]]
		part.Acknowledged = append(part.Acknowledged, a)
	}
	for i := range r.Applied {
		part := &out[home[r.Applied[i].key()]]
		part.Applied = append(part.Applied, r.Applied[i])
	}
	if r.End == nil {
		return out
	}
	for id, version := range r.End.Documents {
		out[home[KeyOf(id)]].End.Documents[id] = version
	}
	for _, d := range r.End.Differences {
		end := out[home[KeyOf(d.ID)]].End
		end.Differences = append(end.Differences, d)
	}
	return out
}

// Misplaced returns the first event and the first row of each entity in the record of a shard that
// is not the entity's, or of an entity that has no shard.
//
// It proves that an entity was in one shard only, so that the order that each shard keeps for itself
// is the order of the entity.
func Misplaced(log *Log, shard int, home map[outbox.Key]int) []Finding {
	var found []Finding
	told := map[outbox.Key]bool{}
	wrong := func(k outbox.Key) string {
		right, known := home[k]
		switch {
		case known && right == shard || told[k]:
			return ""
		case !known:
			return fmt.Sprintf("in shard %d, and belongs to none", shard)
		default:
			return fmt.Sprintf("in shard %d, and belongs to shard %d", shard, right)
		}
	}
	for i := range log.Changes {
		c := &log.Changes[i]
		if what := wrong(c.Key); what != "" {
			told[c.Key] = true
			found = append(found, finding(c, "its event is %s", what))
		}
	}
	clear(told)
	for i := range log.Source {
		c := &log.Source[i]
		if what := wrong(c.Key); what != "" {
			told[c.Key] = true
			found = append(found, Finding{Key: c.Key, Version: c.Version, What: "its row is " + what})
		}
	}
	return found
}
