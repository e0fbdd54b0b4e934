package telemetry

import (
	"net/http"

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

// LevelHandler shows the level at GET and changes it at PUT, in the forms that
// [zap.AtomicLevel] knows, until the next change or the end of the process.
func (t *Telemetry) LevelHandler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		asked := zap.NewAtomicLevelAt(t.Level.Level())
		asked.ServeHTTP(w, req)
		t.ChangeLevel(asked.Level(), req.Method+" "+req.URL.Path)
	})
}
