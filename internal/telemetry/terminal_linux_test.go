package telemetry_test

import (
	"bufio"
	"encoding/json"
	"strings"
	"testing"

	"go.uber.org/zap"

	"github.com/samuelhu324-dev/weft/internal/telemetry"
	"github.com/samuelhu324-dev/weft/internal/testenv"
)

// A person who watches reads lines; where the format is set, it is what was asked for.
func TestTerminal(t *testing.T) {
	t.Parallel()
	for format, wantJSON := range map[string]bool{"": false, "auto": false, "console": false, "json": true} {
		screen, tty := testenv.Terminal(t, 0)
		tel, err := telemetry.New(tty, telemetry.Options{Format: format})
		if err != nil {
			t.Fatal(err)
		}
		tel.Log.Info("hello", zap.Int("n", 1))
		line, err := bufio.NewReader(screen).ReadString('\n')
		if err != nil || !strings.Contains(line, "hello") {
			t.Fatalf("%q: got %q, %v, want the line", format, line, err)
		}
		if got := json.Valid([]byte(line)); got != wantJSON {
			t.Errorf("%q: JSON is %v on a terminal, want %v: %s", format, got, wantJSON, line)
		}
	}
}
