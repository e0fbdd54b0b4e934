package leader

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"net"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

const (
	dialTimeout    = 5 * time.Second // dial and proof of one connection
	tcpUserTimeout = 10 * time.Second
	keepAliveIdle  = 5 * time.Second
	keepAliveEvery = 2 * time.Second
	keepAliveCount = 3
)

// Key returns the advisory lock key of group: the first 8 bytes of the SHA-256 of its
// name, big endian. It never changes, because instances of two versions must meet.
func Key(group string) int64 {
	sum := sha256.Sum256([]byte(group))
	return int64(binary.BigEndian.Uint64(sum[:8])) // the sign bit is part of the key
}

// maxAppName is where the server cuts application_name off, in bytes.
const maxAppName = 63

// AppName returns the application_name of a session, weft/<group>/<instance>/<use>, with
// long names shortened so that the server keeps all of it. Sessions of a group are
// recognised by it when a term of theirs is in the way, so all of them should have one.
func AppName(group, instance, use string) string {
	prefix := appPrefix(group)
	return prefix + shorten(instance, maxAppName-len(prefix)-1-len(use)) + "/" + use
}

func appPrefix(group string) string { return "weft/" + shorten(group, 30) + "/" }

// shorten keeps the difference between two long names in a digest at the end.
func shorten(s string, size int) string {
	const digest = 8
	if len(s) <= size || size <= digest {
		return s
	}
	sum := sha256.Sum256([]byte(s))
	return s[:size-digest-1] + "~" + hex.EncodeToString(sum[:digest/2])
}

// SessionConfig returns a copy of base for the lock session. Its timeouts, by which the server
// ends a frozen or vanished client, override those of the role and of the database. It has no
// tracer, because tries for the lock are frequent, and its own dialer. If there are several servers
// to choose from, it refuses read-only ones.
func SessionConfig(base *pgx.ConnConfig, cfg Config) *pgx.ConnConfig {
	cfg = cfg.withDefaults()
	c := base.Copy()
	if c.RuntimeParams == nil {
		c.RuntimeParams = map[string]string{}
	}
	for _, s := range sessionSettings(cfg) {
		c.RuntimeParams[s.name] = s.value
	}
	c.RuntimeParams["application_name"] = AppName(cfg.Group, cfg.Instance, "lock")
	c.Tracer = nil
	c.ConnectTimeout = cmp.Or(c.ConnectTimeout, dialTimeout)
	c.DialFunc = newDialer().DialContext
	if c.ValidateConnect == nil && severalServers(c) {
		c.ValidateConnect = pgconn.ValidateConnectTargetSessionAttrsReadWrite
	}
	return c
}

type setting struct{ name, value string }

// sessionSettings are the server's side of the timing rules. They go into the start-up
// packet, and once more into the session in case a pooler swallowed them there.
func sessionSettings(cfg Config) []setting {
	ms := func(d time.Duration) string { return strconv.FormatInt(max(d.Milliseconds(), 1), 10) }
	s := func(d time.Duration) string { return strconv.FormatInt(int64(d/time.Second), 10) }
	return []setting{
		{"tcp_keepalives_idle", s(keepAliveIdle)},
		{"tcp_keepalives_interval", s(keepAliveEvery)},
		{"tcp_keepalives_count", strconv.Itoa(keepAliveCount)},
		{"tcp_user_timeout", ms(tcpUserTimeout)},
		{"idle_session_timeout", ms(cfg.IdleSession)},
		{"idle_in_transaction_session_timeout", ms(cfg.IdleSession)},
		{"statement_timeout", ms(cfg.Trust)},
		{"lock_timeout", ms(lockTimeout(cfg))},
		{"default_transaction_isolation", "read committed"}, // a bump that waited must see what it waited for
		{"synchronous_commit", "on"},                        // an epoch that was given out must not be given out again
		{"datestyle", "ISO"},                                // pgx reads no other where the server sends times as text
	}
}

// lockTimeout leaves a heartbeat that waits for a lock time to try again.
func lockTimeout(cfg Config) time.Duration { return min(time.Second, cfg.Trust/3) }

func newDialer() *net.Dialer {
	return &net.Dialer{
		Timeout: dialTimeout,
		KeepAliveConfig: net.KeepAliveConfig{
			Enable: true, Idle: keepAliveIdle, Interval: keepAliveEvery, Count: keepAliveCount,
		},
		Control: controlSocket,
	}
}

func severalServers(c *pgx.ConnConfig) bool {
	for _, f := range c.Fallbacks {
		if f.Host != c.Host || f.Port != c.Port {
			return true
		}
	}
	return false
}
