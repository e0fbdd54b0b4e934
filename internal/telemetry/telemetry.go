package telemetry

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"go.uber.org/zap"
	"go.uber.org/zap/buffer"
	"go.uber.org/zap/zapcore"
	"golang.org/x/term"
)

// Schema is the version of the vocabulary of logs, metrics and spans.
const Schema = "weft-1"

// Options name the instance and the format of its log.
type Options struct {
	Level    string // debug, info, warn, error; default info
	Format   string // json, console, or auto: console on a terminal, else json; default auto
	Journal  bool   // put the priority of systemd's journal before each line
	Group    string
	Instance string
	Env      string // of log lines, and value of the label env; without it that is "unknown"
	Version  string // of the build, for weft_build_info
	Commit   string
	GoVer    string
}

// Telemetry is the log, the metrics and the traces of a process. It is safe for concurrent
// use.
type Telemetry struct {
	Log      *zap.Logger
	Level    zap.AtomicLevel // changes the level of Log at any time
	Output   io.Writer       // what Log writes to; it does not wait for long for the writer of New
	Registry *prometheus.Registry
	// Contract registers the metrics of the contract: with the labels env and
	// component="worker".
	Contract prometheus.Registerer
}

// New returns a logger that writes to w and a registry with the process's own
// metrics.
func New(w io.Writer, o Options) (*Telemetry, error) {
	level, err := zap.ParseAtomicLevel(cmp.Or(o.Level, "info"))
	if err != nil {
		return nil, fmt.Errorf("log level: %w", err)
	}
	enc, err := encoder(w, cmp.Or(o.Format, "auto"))
	if err != nil {
		return nil, err
	}
	if o.Journal {
		enc = journalEncoder{enc, buffer.NewPool()}
	}
	env := zap.Skip()
	if o.Env != "" {
		env = zap.String("env", o.Env)
	}
	fields := []zap.Field{env, zap.String("instance", o.Instance), zap.String("group", o.Group), zap.String("obs_schema", Schema)}
	reg := prometheus.NewRegistry()
	contract := Contract(reg, o.Env)
	out := &output{to: w, tell: lossIn(enc, fields), dropped: droppedLines()}
	if err := contract.Register(out.dropped); err != nil {
		return nil, fmt.Errorf("log metrics: %w", err)
	}
	log := zap.New(newLimiter(zapcore.NewCore(enc, out, level)), zap.ErrorOutput(out)).With(fields...)
	for _, c := range []prometheus.Collector{
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		buildInfo(o),
	} {
		if err := reg.Register(c); err != nil {
			return nil, fmt.Errorf("process metrics: %w", err)
		}
	}
	return &Telemetry{Log: log, Level: level, Output: out, Registry: reg, Contract: contract}, nil
}

// lossIn returns a function that returns the line about lines that were lost.
func lossIn(enc zapcore.Encoder, fields []zap.Field) func(lost int) []byte {
	enc = enc.Clone()
	for _, f := range fields {
		f.AddTo(enc)
	}
	return func(lost int) []byte {
		line, err := enc.EncodeEntry(zapcore.Entry{Level: zap.WarnLevel, Time: time.Now(), LoggerName: "telemetry",
			Message: "log lines were lost: nobody has read the log for long"}, []zap.Field{zap.String("event", "log.lost"), zap.Int("lines", lost)})
		if err != nil {
			return nil
		}
		defer line.Free()
		return bytes.Clone(line.Bytes())
	}
}

// Contract wraps reg so that what is registered through it carries the labels that
// the contract puts on all its metrics. An empty env becomes "unknown".
func Contract(reg prometheus.Registerer, env string) prometheus.Registerer {
	return prometheus.WrapRegistererWith(prometheus.Labels{
		"env": cmp.Or(env, "unknown"), "component": "worker",
	}, reg)
}

func buildInfo(o Options) prometheus.Collector {
	g := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "weft_build_info", Help: "Always 1; the labels say which build this is.",
		ConstLabels: prometheus.Labels{"version": o.Version, "commit": o.Commit, "goversion": o.GoVer},
	})
	g.Set(1)
	return g
}

func encoder(w io.Writer, format string) (zapcore.Encoder, error) {
	cfg := zapcore.EncoderConfig{
		TimeKey: "ts", LevelKey: "level", NameKey: "logger", MessageKey: "msg", StacktraceKey: "stack",
		LineEnding:     zapcore.DefaultLineEnding,
		EncodeLevel:    zapcore.LowercaseLevelEncoder,
		EncodeDuration: zapcore.StringDurationEncoder,
		EncodeTime: func(t time.Time, enc zapcore.PrimitiveArrayEncoder) {
			enc.AppendString(t.UTC().Format(time.RFC3339Nano))
		},
	}
	tty := terminal(w)
	switch format {
	case "json":
		return zapcore.NewJSONEncoder(cfg), nil
	case "auto":
		if !tty {
			return zapcore.NewJSONEncoder(cfg), nil
		}
	case "console":
	default:
		return nil, fmt.Errorf("log format %q: want json, console or auto", format)
	}
	cfg.EncodeTime = func(t time.Time, enc zapcore.PrimitiveArrayEncoder) {
		enc.AppendString(t.Format("15:04:05.000"))
	}
	cfg.EncodeLevel = zapcore.CapitalLevelEncoder
	if tty && os.Getenv("NO_COLOR") == "" {
		cfg.EncodeLevel = zapcore.CapitalColorLevelEncoder
	}
	return zapcore.NewConsoleEncoder(cfg), nil
}

func terminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}
