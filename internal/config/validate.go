package config

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/samuelhu324-dev/weft/projections"
)

// relation is a rule between settings that does not hold. The first key is the
// one to change.
type relation struct {
	keys []string
	msg  string
}

func (r *relation) Error() string { return r.keys[0] + ": " + r.msg }

// Validate checks every range and every relation between settings, and returns
// all that do not hold, joined. Load calls it; call it for a Config made by hand.
func (c Config) Validate() error {
	var errs []error
	fail := func(msg string, keys ...string) { errs = append(errs, &relation{keys: keys, msg: msg}) }

	if c.Database.URL == "" {
		fail("is required: set DATABASE_URL, or database.url in the configuration file", "database.url")
	}
	for _, s := range table() {
		text := s.get(&c)
		if text == "" && (s.def == "" || s.key == "database.url") && s.key != "instance" {
			continue
		}
		scratch := Config{Declared: c.Declared, Registered: c.Registered}
		if err := s.set(&scratch, text); err != nil {
			fail(badValue(s, text, err), s.key)
		}
	}

	less := func(a, b string, av, bv time.Duration) {
		if av >= bv {
			fail(fmt.Sprintf("%s must be shorter than %s (%s)", short(av), b, short(bv)), a, b)
		}
	}
	less("leader.heartbeat", "leader.trust", c.Leader.Heartbeat, c.Leader.Trust)
	less("leader.trust", "leader.idle_session", c.Leader.Trust, c.Leader.IdleSession)
	if c.Leader.Poll+c.Leader.Poll/5 >= c.Leader.IdleSession { // a poll is jittered by a fifth
		fail(fmt.Sprintf("%s must be clearly shorter than leader.idle_session (%s)", short(c.Leader.Poll), short(c.Leader.IdleSession)),
			"leader.poll", "leader.idle_session")
	}
	less("elastic.timeout", "outbox.lease", c.Elastic.Timeout, c.Outbox.Lease)
	if c.Outbox.BaseBackoff > c.Outbox.MaxBackoff {
		fail(fmt.Sprintf("%s must not be longer than outbox.max_backoff (%s)", short(c.Outbox.BaseBackoff), short(c.Outbox.MaxBackoff)),
			"outbox.base_backoff", "outbox.max_backoff")
	}
	less("elastic.timeout", "outbox.max_processing", c.Elastic.Timeout, c.Outbox.MaxProcessing)

	if c.Outbox.Retention != 0 && c.Outbox.Retention < time.Hour {
		fail(short(c.Outbox.Retention)+": want 0, or an hour or more", "outbox.retention")
	}
	if c.Audit.KeepFailures < c.Audit.Keep {
		fail(fmt.Sprintf("%s must not be shorter than audit.keep (%s)", short(c.Audit.KeepFailures), short(c.Audit.Keep)), "audit.keep_failures", "audit.keep")
	}

	if c.Shards.Count > 1 {
		c.validateShards(fail)
	}
	for _, n := range slices.Sorted(maps.Keys(c.Shards.Servers)) {
		if n >= c.Shards.Count {
			fail(fmt.Sprintf("shard %d: there are %d, counted from 0", n, c.Shards.Count), "shards.servers", "shards.count")
		}
	}

	if c.Desk.Actions && (c.Desk.WebConfig == "" || c.Desk.Operators == "") {
		fail("needs desk.web_config with a login, and desk.operators", "desk.actions", "desk.web_config", "desk.operators")
	}

	for _, d := range c.Declared {
		if d.Index == c.Elastic.Index && slices.Contains(c.Projections, projections.SearchIndexToElastic) {
			fail(fmt.Sprintf("writes to index %s, as %s does: their documents would replace one another; take an index of its own", d.Index, projections.SearchIndexToElastic),
				"projections."+d.Name)
		}
	}

	c.Elastic.validate(fail)
	return errors.Join(errs...)
}

// suffixOfShard is the room for what follows the name of a group, or of an index, of one shard.
const suffixOfShard = 10

// The values of shards.indexes.
const (
	IndexesShared = "shared" // one index of all shards
	IndexesOwn    = "own"    // an index for each
)

// validateShards refuses what does not go with several shards.
func (c Config) validateShards(fail func(msg string, keys ...string)) {
	if len(c.Group) > maxName-suffixOfShard {
		fail(fmt.Sprintf("with several shards want at most %d characters", maxName-suffixOfShard), "group", "shards.count")
	}
	if c.Shards.Indexes == IndexesOwn && len(c.Elastic.Index) > maxIndex-suffixOfShard {
		fail(fmt.Sprintf("with an index for each shard want at most %d bytes", maxIndex-suffixOfShard), "elastic.index", "shards.indexes")
	}
	for _, name := range c.Projections {
		if !slices.Contains(projectionNames, name) {
			fail(fmt.Sprintf("projection %s has an outbox that is not dealt out: want 1, or only %s", name, strings.Join(projectionNames, ", ")), "shards.count", "projections")
		}
	}
}
