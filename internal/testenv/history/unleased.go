package history

import (
	"maps"
	"slices"
	"sort"
	"time"

	"github.com/samuelhu324-dev/weft/outbox"
)

// settling is what one transaction settles of one entity.
type settling struct {
	tx  uint64
	key outbox.Key
}

// Unleased returns the verdicts without a lease: an event that became done or failed or
// left the table, or on which an attempt was counted, by a transaction that did not end a
// lease that names it; and an event that was taken back without one. These need none: a
// replay, the removal of an event that is done, and what another worker does with the rows
// that it has claimed. An older build of weft settles ready events together with a later
// one of their entity that it has claimed.
//
// It proves that every verdict of weft belongs to a batch that was in flight until then,
// and to one only.
func Unleased(log *Log) []Finding {
	// Newest versions that transactions of an older build have settled.
	supersedes := map[settling]int64{}
	for i := range log.Changes {
		if c := &log.Changes[i]; c.From == Processing && c.Done() && c.Epoch > 0 {
			k := settling{c.Tx, c.Key}
			supersedes[k] = max(supersedes[k], c.Version)
		}
	}
	var found []Finding
	attempts := map[outbox.ID]int{}
	for i := range log.Changes {
		c := &log.Changes[i]
		before := attempts[c.Event]
		attempts[c.Event] = c.Attempts
		switch {
		case c.From != Pending, c.To == Processing, c.Owner != "":
		case c.Reclaim:
			found = append(found, finding(c, "reclaimed without a lease"))
		case c.To == Pending && c.Attempts > before:
			found = append(found, finding(c, "attempt %d counted without a lease", c.Attempts))
		case c.To == Pending, c.To == Done && supersedes[settling{c.Tx, c.Key}] > c.Version:
		default:
			found = append(found, finding(c, "became %s without a lease", c.To))
		}
	}
	return found
}

// crashLoss is how long before a crash of PostgreSQL a commit may be that the crash takes
// back: weft does not wait for the disk. crashEcho is until when afterwards something may
// be sent under such a lease.
const (
	crashLoss = time.Second
	crashEcho = 10 * time.Second
)

// sentEarly returns the items of bulk requests for an entity of which the sender held no
// lease: none that had committed when the item was sent, and was not ended yet. A request
// may arrive late, when the lease that it belonged to is over: it may have been one of
// those if its version was known before the lease ended, and its holder had not released
// the lease without a verdict on any event, as it does with what it has not sent. crashes
// are the times in which PostgreSQL lost what had not reached the disk, until it was back:
// there, a lease may be missing from the record. more are instances of which their own leases count
// although they have held none of this shard.
//
// It proves that nothing new is sent before the lease is committed. It takes the
// database's clock and that of the recording process for the same.
func sentEarly(log *Log, applied []Applied, crashes []FaultMark, more map[string]bool) []Finding {
	if len(applied) == 0 {
		return nil
	}
	flights, holders := flightsOf(log)
	maps.Copy(holders, more)
	var found []Finding
	for _, a := range byTime(applied) {
		key := a.key()
		lost := slices.ContainsFunc(crashes, func(m FaultMark) bool {
			return a.Sent.After(m.At.Add(-crashLoss)) && a.Sent.Before(m.Until.Add(crashEcho))
		})
		if flights[key].explain(a, holders[a.Instance]) || lost {
			continue
		}
		found = append(found, Finding{Key: key, Version: a.Version, What: "sent without a lease on an event of its entity: " + a.line()})
	}
	return found
}

// flight is the time in which an event of an entity was leased.
type flight struct {
	owner    string
	from, to time.Time // to is zero when it was leased at the end
	released bool      // its holder has ended it, and nothing was sent
}

// flights are those of one entity, in the order of their begin, with the versions that
// became known of it.
type flights struct {
	all   []flight
	known growth // by what was committed
}

// explain reports whether a was sent during a flight, or could have been and is late. Of
// an instance that has held leases its own count.
func (f *flights) explain(a *Applied, holder bool) bool {
	if f == nil {
		return false
	}
	n := sort.Search(len(f.all), func(i int) bool { return f.all[i].from.After(a.Sent) })
	for _, l := range slices.Backward(f.all[:n]) {
		if holder && l.owner != a.Instance {
			continue
		}
		if l.to.IsZero() || !a.Sent.After(l.to) || !l.released && a.Version <= max(f.known.until(l.to), 0) {
			return true
		}
	}
	return false
}

// flightsOf returns the flights by entity, and who has held leases.
func flightsOf(log *Log) (byKey map[outbox.Key]*flights, holders map[string]bool) {
	byKey, holders = map[outbox.Key]*flights{}, map[string]bool{}
	of := func(k outbox.Key) *flights {
		f := byKey[k]
		if f == nil {
			f = &flights{}
			byKey[k] = f
		}
		return f
	}
	// Versions become known by rows of the source or by events, whichever is first.
	source := log.Source
	for i := range log.Changes {
		c := &log.Changes[i]
		for len(source) > 0 && !source[0].At.After(c.At) {
			of(source[0].Key).known.add(source[0].At, source[0].Version)
			source = source[1:]
		}
		if c.From == "" {
			of(c.Key).known.add(c.At, c.Version)
		}
	}
	keys := keysOf(log)
	for _, l := range log.Leases {
		holders[l.Owner] = true
		released := l.EndedBy == l.Owner && l.Settled+l.Reclaimed == 0
		for _, e := range l.Events {
			of(keys[e].key).add(flight{l.Owner, l.At, l.Ended, released})
		}
	}
	return byKey, holders
}

// add adds a flight; several events of one lease are one.
func (f *flights) add(l flight) {
	if n := len(f.all); n == 0 || f.all[n-1] != l {
		f.all = append(f.all, l)
	}
}
