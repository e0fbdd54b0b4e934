package telemetry

import (
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// ChangeLevel changes the level of Log and says so, at the more talkative of the two.
func (t *Telemetry) ChangeLevel(to zapcore.Level, by string) {
	from := t.Level.Level()
	if from == to {
		return
	}
	t.Level.SetLevel(min(from, to))
	t.Log.Info("log level changed", zap.String("event", "log.level"),
		zap.Stringer("from", from), zap.Stringer("to", to), zap.String("by", by))
	t.Level.SetLevel(to)
}
