package telemetry

import (
	"cmp"
	"slices"
	"strconv"
	"sync"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

const (
	// limitBurst lines of a family are written as they come; from then on, for as long as
	// they keep coming, the newest one per limitWindow.
	limitBurst  = 10
	limitWindow = time.Minute
	// eventBurst is the same of lines about events and batches: people look for them by id.
	eventBurst = 100
)

// family names the lines that report the same thing, of which only the newest matters.
// Lines of other events are never left out.
type family struct {
	name string
	by   string // field that tells its members apart, besides projection and shard
}

// families are the lines that an outage, or people who look, may repeat without end.
var families = map[string]family{
	"dependency.down":         {"dependency", "dependency"},
	"dependency.up":           {"dependency", "dependency"},
	"projection.outage":       {"projection", ""},
	"projection.resumed":      {"projection", ""},
	"projection.unknown_fate": {"projection.unknown_fate", "reason"},
	"outbox.fault":            {"outbox", ""},
	"outbox.recovered":        {"outbox", ""},
	"outbox.settle_fault":     {"outbox.settle_fault", ""},
	"outbox.kept":             {"outbox.kept", ""},
	"leader.disconnected":     {"leader", ""},
	"leader.standby":          {"leader", ""},
	"reclaim.fault":           {"reclaim.fault", ""},
	"gauges.fault":            {"gauges.fault", ""},
	"rebuild.fault":           {"rebuild.fault", ""},
	"load.fault":              {"load.fault", ""},
	"presence.fault":          {"presence.fault", ""},
	"elastic.unknown_answer":  {"elastic.unknown_answer", "reason"},
	"elastic.other_node":      {"elastic.other_node", ""},
	"version.unexamined":      {"version.unexamined", ""},
	"desk.refused":            {"desk.refused", ""},
	"desk.unread":             {"desk.unread", "path"},
}

// limiter is a core that thins out the families.
type limiter struct {
	zapcore.Core
	scope  string // value of the field projection
	shard  string // of the field shard, a number; empty without
	quotas *quotas
}

type quotas struct {
	mu sync.Mutex
	of map[string]*quota
}

// quota is the state of one family.
type quota struct {
	until   time.Time // of the window; monotonic
	written int       // in this window
	allowed int       // in this window
	burst   int       // allowed while there is no storm
	held    *line
	left    int // lines that held has replaced
	timer   *time.Timer
}

// line is one that is held back; it is encoded when it is written.
type line struct {
	core   zapcore.Core
	entry  zapcore.Entry
	fields []zapcore.Field
}

func (l *line) write(left int) {
	_ = l.core.Write(l.entry, append(l.fields, zap.Int("left_out", left))) // nobody is left to tell
}

func newLimiter(core zapcore.Core) zapcore.Core {
	return &limiter{Core: core, quotas: &quotas{of: map[string]*quota{}}}
}

// With implements zapcore.Core.
func (l *limiter) With(fields []zapcore.Field) zapcore.Core {
	out := *l
	out.Core = l.Core.With(fields)
	if p := text(fields, "projection"); p != "" {
		out.scope = p
	}
	if i := slices.IndexFunc(fields, func(f zapcore.Field) bool { return f.Key == "shard" }); i >= 0 {
		out.shard = strconv.FormatInt(fields[i].Integer, 10)
	}
	return &out
}

// Check implements zapcore.Core.
func (l *limiter) Check(e zapcore.Entry, ce *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if l.Enabled(e.Level) {
		return ce.AddCore(e, l)
	}
	return ce
}

// Write implements zapcore.Core.
func (l *limiter) Write(e zapcore.Entry, fields []zapcore.Field) error {
	key, burst := l.key(e, fields)
	if key == "" || !l.quotas.hold(key, burst, l.Core, e, fields) {
		return l.Core.Write(e, fields)
	}
	return nil
}

// Sync implements zapcore.Core. It writes the lines that were held back.
func (l *limiter) Sync() error {
	l.quotas.flush()
	return l.Core.Sync()
}

// key returns the family of a line and its burst, or "" when it has none.
func (l *limiter) key(e zapcore.Entry, fields []zapcore.Field) (key string, burst int) {
	event := text(fields, "event")
	scope := func() string { return cmp.Or(text(fields, "projection"), l.scope) + "\x00" + l.shard }
	if f, ok := families[event]; ok {
		return f.name + "\x00" + scope() + "\x00" + text(fields, f.by), limitBurst
	}
	switch {
	case l.Enabled(zapcore.DebugLevel): // somebody wants to see each line
		return "", 0
	case event == "projection.event" && e.Level > zapcore.WarnLevel: // a dead letter
		return "", 0
	case event == "projection.event", event == "projection.batch", event == "outbox.settle_left":
		return event + "\x00" + scope() + "\x00" + e.Level.String() + "\x00" + text(fields, "result") + "\x00" + text(fields, "reason"), eventBurst
	}
	return "", 0
}

func text(fields []zapcore.Field, key string) string {
	if i := slices.IndexFunc(fields, func(f zapcore.Field) bool { return f.Key == key }); i >= 0 {
		return fields[i].String
	}
	return ""
}

// hold reports whether a line is held back.
func (q *quotas) hold(key string, burst int, core zapcore.Core, e zapcore.Entry, fields []zapcore.Field) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	f := q.of[key]
	if f == nil {
		f = &quota{allowed: burst, burst: burst}
		q.of[key] = f
	}
	if now := time.Now(); !now.Before(f.until) && f.held == nil {
		if f.written <= 1 { // the storm is over
			f.allowed = f.burst
		}
		f.until, f.written = now.Add(limitWindow), 0
	}
	if f.held == nil && f.written < f.allowed {
		f.written++
		return false
	}
	if f.held != nil {
		f.left++
	}
	f.held = &line{core, e, slices.Clone(fields)}
	if f.timer == nil {
		f.timer = time.AfterFunc(time.Until(f.until), func() { q.release(key) })
	}
	return true
}

// release writes what a family holds, and lets one line per window pass for as long as
// more keep coming.
func (q *quotas) release(key string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	f := q.of[key]
	f.timer = nil
	if f.held == nil {
		return
	}
	f.let()
	f.until, f.written, f.allowed = time.Now().Add(limitWindow), 1, 1
}

// let writes the line that is held back.
func (f *quota) let() {
	f.held.write(f.left)
	f.held, f.left = nil, 0
}

func (q *quotas) flush() {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, f := range q.of {
		if f.timer != nil {
			f.timer.Stop()
			f.timer = nil
		}
		if f.held != nil {
			f.let()
		}
	}
}
