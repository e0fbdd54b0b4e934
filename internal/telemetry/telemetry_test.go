package telemetry_test

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/samuelhu324-dev/weft/internal/telemetry"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func setup(t *testing.T, o telemetry.Options) (*telemetry.Telemetry, *bytes.Buffer) {
	t.Helper()
	var b bytes.Buffer
	tel, err := telemetry.New(&b, o)
	if err != nil {
		t.Fatalf("New: %v", err)
	}
	return tel, &b
}

func lines(t *testing.T, b *bytes.Buffer) []map[string]any {
	t.Helper()
	var out []map[string]any
	for l := range strings.Lines(b.String()) {
		var m map[string]any
		if err := json.Unmarshal([]byte(l), &m); err != nil {
			t.Fatalf("line %q is not JSON: %v", l, err)
		}
		out = append(out, m)
	}
	return out
}

func TestJournalPriority(t *testing.T) {
	t.Parallel()
	tel, b := setup(t, telemetry.Options{Level: "debug", Journal: true})
	log := tel.Log.With(zap.Int("epoch", 7))
	log.Debug("one")
	log.Info("two")
	log.Warn("three")
	log.Error("four")
	log.DPanic("five")
	var got []string
	for l := range strings.Lines(b.String()) {
		prefix, rest, _ := strings.Cut(l, "{")
		var line struct {
			Msg   string `json:"msg"`
			Epoch int    `json:"epoch"`
		}
		if err := json.Unmarshal([]byte("{"+rest), &line); err != nil || line.Epoch != 7 {
			t.Fatalf("line %q: %v", l, err)
		}
		got = append(got, prefix+line.Msg)
	}
	if want := []string{"<7>one", "<6>two", "<4>three", "<3>four", "<2>five"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestJSONLine(t *testing.T) {
	t.Parallel()
	tel, b := setup(t, telemetry.Options{Env: "e", Group: "g", Instance: "i"})
	tel.Log.Named("leader").Info("took over", zap.Int64("epoch", 7), zap.Duration("waited", 1500*time.Millisecond))
	got := lines(t, b)
	if len(got) != 1 {
		t.Fatalf("got %d lines, want 1", len(got))
	}
	ts, err := time.Parse(time.RFC3339Nano, got[0]["ts"].(string))
	if err != nil || ts.Location() != time.UTC {
		t.Errorf("ts %q: want RFC 3339 in UTC (%v)", got[0]["ts"], err)
	}
	for k, want := range map[string]any{"level": "info", "logger": "leader", "msg": "took over", "env": "e", "instance": "i",
		"group": "g", "obs_schema": telemetry.Schema, "epoch": 7.0, "waited": "1.5s"} {
		if got[0][k] != want {
			t.Errorf("%s: got %v, want %v", k, got[0][k], want)
		}
	}
}

func TestLevelChanges(t *testing.T) {
	t.Parallel()
	tel, b := setup(t, telemetry.Options{Level: "warn"})
	tel.Log.Info("unseen")
	tel.Level.SetLevel(zapcore.DebugLevel)
	tel.Log.Debug("seen")
	if got := lines(t, b); len(got) != 1 || got[0]["msg"] != "seen" {
		t.Errorf("got %v, want only the line after the change", got)
	}
}

// The line about the change is written at whichever level lets it pass.
func TestChangeLevel(t *testing.T) {
	t.Parallel()
	tel, b := setup(t, telemetry.Options{})
	for _, to := range []zapcore.Level{zapcore.ErrorLevel, zapcore.ErrorLevel, zapcore.DebugLevel} {
		tel.ChangeLevel(to, "a test")
	}
	got := lines(t, b)
	if len(got) != 2 || got[0]["from"] != "info" || got[0]["to"] != "error" || got[1]["from"] != "error" || got[1]["to"] != "debug" {
		t.Errorf("got %v, want both changes", got)
	}
}

func TestFormats(t *testing.T) {
	t.Parallel()
	for format, wantJSON := range map[string]bool{"json": true, "console": false, "auto": true} {
		tel, b := setup(t, telemetry.Options{Format: format})
		tel.Log.Info("hello")
		if got := json.Valid(b.Bytes()); got != wantJSON {
			t.Errorf("%s: JSON is %v, want %v: %s", format, got, wantJSON, b)
		}
	}
	for _, o := range []telemetry.Options{{Format: "xml"}, {Level: "loud"}} {
		if _, err := telemetry.New(&bytes.Buffer{}, o); err == nil {
			t.Errorf("%+v: got no error", o)
		}
	}
}

func TestRegistry(t *testing.T) {
	t.Parallel()
	tel, _ := setup(t, telemetry.Options{Version: "1.2.3"})
	c := prometheus.NewCounter(prometheus.CounterOpts{Name: "outbox_x_total", Help: "x"})
	if err := tel.Contract.Register(c); err != nil {
		t.Fatal(err)
	}
	fams, err := tel.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, f := range fams {
		names = append(names, f.GetName())
		if f.GetName() != "outbox_x_total" {
			continue
		}
		got := map[string]string{}
		for _, l := range f.GetMetric()[0].GetLabel() {
			got[l.GetName()] = l.GetValue()
		}
		if len(got) != 2 || got["env"] != "unknown" || got["component"] != "worker" {
			t.Errorf("got labels %v, want env=unknown and component=worker", got)
		}
	}
	for _, want := range []string{"outbox_x_total", "weft_build_info", "go_goroutines", "process_start_time_seconds"} {
		if !slices.Contains(names, want) {
			t.Errorf("metric %s is missing", want)
		}
	}
}
