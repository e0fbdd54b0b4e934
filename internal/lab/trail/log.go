package trail

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
)

// Line is a line of a log.
type Line struct {
	Instance string
	Raw      string
	Fields   map[string]any
}

// text is a field as text.
func (l Line) text(key string) string {
	s, _ := l.Fields[key].(string)
	return s
}

// grep returns the lines of all instances that contain a text, in the order of the files.
func (l *lab) grep(text string) (found []Line, err error) {
	for _, i := range l.instances {
		content, err := os.ReadFile(i.Log)
		if err != nil {
			return nil, fmt.Errorf("log of %s: %w", i.Name, err)
		}
		for line := range bytes.Lines(content) {
			if !bytes.Contains(line, []byte(text)) || !bytes.HasSuffix(line, []byte("\n")) {
				continue
			}
			found = append(found, Line{Instance: i.Name, Raw: string(bytes.TrimSpace(line))})
			if err := json.Unmarshal(line, &found[len(found)-1].Fields); err != nil {
				return nil, fmt.Errorf("log of %s: %w in %s", i.Name, err, line)
			}
		}
	}
	return found, nil
}

// findLines returns whether one is of the span itself.
func (l *lab) findLines(t *Trail) (ok bool, err error) {
	t.Lines, err = l.grep(t.Span.TraceID)
	for _, line := range t.Lines {
		ok = ok || line.text("span_id") == t.Span.ID
	}
	return ok, err
}
