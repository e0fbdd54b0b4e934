package telemetry

import (
	"go.uber.org/zap/buffer"
	"go.uber.org/zap/zapcore"
)

// journalEncoder puts the priority of each line before it, as sd-daemon(3) has it. The
// journal takes it off again: `journalctl --priority` then knows the level, and the
// message is the line as it is elsewhere.
type journalEncoder struct {
	zapcore.Encoder
	lines buffer.Pool
}

// Clone implements zapcore.Encoder.
func (j journalEncoder) Clone() zapcore.Encoder {
	return journalEncoder{j.Encoder.Clone(), j.lines}
}

// EncodeEntry implements zapcore.Encoder.
func (j journalEncoder) EncodeEntry(e zapcore.Entry, fields []zapcore.Field) (*buffer.Buffer, error) {
	line, err := j.Encoder.EncodeEntry(e, fields)
	if err != nil {
		return nil, err
	}
	defer line.Free()
	out := j.lines.Get()
	out.AppendString(priority(e.Level))
	_, err = out.Write(line.Bytes())
	return out, err
}

func priority(l zapcore.Level) string {
	switch {
	case l >= zapcore.DPanicLevel:
		return "<2>"
	case l == zapcore.ErrorLevel:
		return "<3>"
	case l == zapcore.WarnLevel:
		return "<4>"
	case l == zapcore.InfoLevel:
		return "<6>"
	default:
		return "<7>"
	}
}
