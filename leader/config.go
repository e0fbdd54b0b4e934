package leader

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// The defaults of Config. They obey heartbeat < trust < idle session.
const (
	DefaultPoll        = 25 * time.Millisecond
	DefaultHeartbeat   = time.Second
	DefaultTrust       = 3 * time.Second
	DefaultIdleSession = 5 * time.Second
)

// maxName is the width of the name columns, in characters.
const maxName = 120

// Config says who takes part in which election, and how fast. Zero durations take
// the defaults.
type Config struct {
	// Group names the election: instances of one group compete for one lock. Printable
	// ASCII without a slash, 1 to 120 characters.
	Group string
	// Instance names this process within the group, 1 to 120 characters without control
	// characters. Two live processes should not share one; if they do, the election is
	// still safe but its records cannot tell them apart.
	Instance string

	Poll        time.Duration // between two tries of a standby, most of them by the server
	Heartbeat   time.Duration // between the starts of two proofs of a leader; longer than a Poll is not needed
	Trust       time.Duration // how long a proof is good, from its start; longer than Heartbeat
	IdleSession time.Duration // after which the server ends a silent session; longer than Trust, 100 ms to 24 h
}

// withDefaults returns c with its zero durations filled in.
func (c Config) withDefaults() Config {
	c.Poll = cmp.Or(c.Poll, DefaultPoll)
	c.Heartbeat = cmp.Or(c.Heartbeat, DefaultHeartbeat)
	c.Trust = cmp.Or(c.Trust, DefaultTrust)
	c.IdleSession = cmp.Or(c.IdleSession, DefaultIdleSession)
	return c
}

// validate returns every violation, joined.
func (c Config) validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf("leader: "+format, args...)) }

	if err := checkName(c.Group); err != nil {
		bad("group %q: %w", c.Group, err)
	} else if strings.ContainsFunc(c.Group, func(r rune) bool { return r == '/' || r > unicode.MaxASCII }) {
		bad("group %q: only printable ASCII without a slash", c.Group)
	}
	if err := checkName(c.Instance); err != nil {
		bad("instance %q: %w", c.Instance, err)
	}

	if c.Poll <= 0 {
		bad("poll (%v) must be positive", c.Poll)
	}
	if c.Heartbeat <= 0 {
		bad("heartbeat (%v) must be positive", c.Heartbeat)
	}
	if c.Heartbeat >= c.Trust {
		bad("heartbeat (%v) must be shorter than trust (%v)", c.Heartbeat, c.Trust)
	}
	if c.Trust >= c.IdleSession {
		bad("trust (%v) must be shorter than idle session (%v)", c.Trust, c.IdleSession)
	}
	if longest := c.Poll + c.Poll/5; longest >= c.IdleSession {
		bad("poll (%v, at most %v with jitter) must be shorter than idle session (%v)", c.Poll, longest, c.IdleSession)
	}
	if c.IdleSession < 100*time.Millisecond || c.IdleSession > 24*time.Hour {
		bad("idle session (%v) must be between 100ms and 24h", c.IdleSession)
	}
	return errors.Join(errs...)
}

func checkName(s string) error {
	switch {
	case s == "":
		return errors.New("must not be empty")
	case !utf8.ValidString(s):
		return errors.New("is not valid UTF-8")
	case utf8.RuneCountInString(s) > maxName:
		return fmt.Errorf("must not be longer than %d characters", maxName)
	case strings.ContainsFunc(s, unicode.IsControl):
		return errors.New("must not contain control characters")
	}
	return nil
}
