package history

import (
	"cmp"
	"fmt"
)

// TwoActive returns what shows two active instances: terms that share an epoch or do
// not follow each other; a claim or settle under an epoch older than one already
// committed, under one of another instance, under one that no term has begun, or under
// none; an event taken while it was claimed; and a session that settled or reclaimed
// what was not its own to settle or reclaim.
func TwoActive(log *Log) []Finding {
	var (
		found  []Finding
		newest int64
		terms  = log.Terms
		owners = map[int64]string{}
	)
	for i := range log.Changes {
		c := &log.Changes[i]
		for len(terms) > 0 && cmp.Or(terms[0].At.Compare(c.At), cmp.Compare(terms[0].Seq, c.Seq)) < 0 {
			found = append(found, begun(&terms[0], &newest, owners)...)
			terms = terms[1:]
		}
		if what := usurped(c, newest, owners); what != "" {
			found = append(found, finding(c, "%s", what))
		}
		if c.claim() || c.Settles() {
			if len(log.Terms) > 0 && c.Epoch > newest && newest > 0 {
				found = append(found, finding(c, "%s by %q under epoch %d, which no term has begun", act(c), c.Owner, c.Epoch))
			}
			newest = max(newest, c.Epoch)
			if _, known := owners[c.Epoch]; !known {
				owners[c.Epoch] = c.Owner
			}
		}
	}
	for i := range terms {
		found = append(found, begun(&terms[i], &newest, owners)...)
	}
	return found
}

// begun enters a term and says what is wrong with its epoch.
func begun(t *Term, newest *int64, owners map[int64]string) []Finding {
	owner, known := owners[t.Epoch]
	what := ""
	switch {
	case known:
		what = fmt.Sprintf("term of %q began with epoch %d, which %q has had", t.Instance, t.Epoch, owner)
	case t.Epoch <= *newest:
		what = fmt.Sprintf("term of %q began with epoch %d after epoch %d was committed", t.Instance, t.Epoch, *newest)
	}
	owners[t.Epoch] = t.Instance
	*newest = max(*newest, t.Epoch)
	if what == "" {
		return nil
	}
	return []Finding{{Version: t.Epoch, At: t.At, What: what}}
}

func act(c *Change) string {
	switch {
	case c.claim():
		return "claim"
	case c.Reclaim:
		return "reclaim"
	default:
		return "settle"
	}
}

// usurped says what is wrong with who made c.
func usurped(c *Change, newest int64, owners map[int64]string) string {
	if c.Reclaim {
		if leader := owners[newest]; c.By != "" && leader != "" && c.By != leader {
			return fmt.Sprintf("reclaim by %q under epoch %d of %q", c.By, newest, leader)
		}
		return ""
	}
	if !c.claim() && !c.Settles() {
		return ""
	}
	owner, known := owners[c.Epoch]
	switch {
	case c.Epoch == 0:
		return fmt.Sprintf("%s by %q under no epoch", act(c), c.Owner)
	case c.Epoch < newest:
		return fmt.Sprintf("%s by %q under epoch %d after epoch %d was committed", act(c), c.Owner, c.Epoch, newest)
	case known && owner != c.Owner:
		return fmt.Sprintf("%s by %q under epoch %d of %q", act(c), c.Owner, c.Epoch, owner)
	case c.claim() && c.From == Processing:
		return fmt.Sprintf("claim by %q under epoch %d of an event that was claimed", c.Owner, c.Epoch)
	case c.By != "" && c.By != c.Owner:
		return fmt.Sprintf("%s by a session of %q of what %q holds under epoch %d", act(c), c.By, c.Owner, c.Epoch)
	}
	return ""
}
