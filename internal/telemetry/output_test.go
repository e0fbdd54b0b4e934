package telemetry_test

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"

	"github.com/samuelhu324-dev/weft/internal/telemetry"
	"github.com/samuelhu324-dev/weft/internal/testenv"
)

// Where nobody reads the log, whoever writes goes on; the lines come in their order when somebody does, and one says
// how many were dropped.
func TestLogThatNobodyReadsHoldsUpNobody(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const lines = 5000
		r, w := io.Pipe()
		tel, err := telemetry.New(w, telemetry.Options{Group: "g"})
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		for n := range lines {
			tel.Log.Info(strings.Repeat("x", 1000), zap.Int("n", n))
		}
		if err := tel.Log.Sync(); err == nil {
			t.Error("Sync says that all is written")
		}
		if took := time.Since(began); took > 1100*time.Millisecond {
			t.Errorf("whoever writes was held up for %v, want once for a line, and at the end", took)
		}
		dropped, _ := testenv.Metric(t, tel.Registry, "weft_log_dropped_total")
		if dropped == 0 || dropped == lines {
			t.Errorf("dropped: got %v of %d lines, want those beyond a mebibyte", dropped, lines)
		}

		in := bufio.NewReader(r)
		read := func() (line struct {
			Event, Group string
			N, Lines     int
		}) {
			t.Helper()
			text, err := in.ReadString('\n')
			if err == nil {
				err = json.Unmarshal([]byte(text), &line)
			}
			if err != nil {
				t.Fatal(err)
			}
			return line
		}
		for n := range lines - int(dropped) {
			if got := read(); got.N != n {
				t.Fatalf("line %d is no. %d", n, got.N)
			}
		}
		if got := read(); got.Event != "log.lost" || got.Lines != int(dropped) || got.Group != "g" {
			t.Errorf("got %+v, want that %v lines were lost", got, dropped)
		}
		synctest.Wait()
		go tel.Log.Info("read", zap.Int("n", -1))
		if got := read(); got.N != -1 {
			t.Errorf("got %+v, want the line that came last", got)
		}
		if err := tel.Log.Sync(); err != nil {
			t.Errorf("Sync: %v", err)
		}
	})
}

// slow takes a tenth of a second for each line.
type slow struct{ written []byte }

func (s *slow) Write(p []byte) (int, error) {
	time.Sleep(100 * time.Millisecond)
	s.written = append(s.written, p...)
	return len(p), nil
}

// A reader that is slow loses nothing, also at the end.
func TestLogOfASlowReaderIsWhole(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var w slow
		tel, err := telemetry.New(&w, telemetry.Options{})
		if err != nil {
			t.Fatal(err)
		}
		for range 8 {
			tel.Log.Info("line")
		}
		if err := tel.Log.Sync(); err != nil {
			t.Errorf("Sync: %v", err)
		}
		synctest.Wait()
		if got := strings.Count(string(w.written), "\n"); got != 8 {
			t.Errorf("got %d lines, want 8", got)
		}
	})
}

type full struct{}

func (full) Write([]byte) (int, error) { return 0, errors.New("no space left on device") }

// Lines that cannot be written are counted.
func TestLinesThatCannotBeWrittenAreCounted(t *testing.T) {
	t.Parallel()
	tel, err := telemetry.New(full{}, telemetry.Options{})
	if err != nil {
		t.Fatal(err)
	}
	tel.Log.Info("one")
	tel.Log.Info("two")
	if got, _ := testenv.Metric(t, tel.Registry, "weft_log_dropped_total"); got != 2 {
		t.Errorf("got %v, want 2", got)
	}
}

// filling has room for some bytes, and takes no more until somebody makes room.
type filling struct {
	written []byte
	room    int
}

func (f *filling) Write(p []byte) (int, error) {
	n := min(len(p), f.room)
	f.written, f.room = append(f.written, p[:n]...), f.room-n
	if n < len(p) {
		return n, errors.New("no space left on device")
	}
	return n, nil
}

// A line that is cut off takes no other with it.
func TestLineAfterOneThatWasCutOffIsWhole(t *testing.T) {
	t.Parallel()
	w := filling{room: 100}
	tel, err := telemetry.New(&w, telemetry.Options{})
	if err != nil {
		t.Fatal(err)
	}
	tel.Log.Info("cut")
	tel.Log.Info("lost")
	w.room = 1000
	tel.Log.Info("whole")
	tel.Log.Info("next")
	lines := strings.Split(string(w.written), "\n")
	for i, msg := range map[int]string{1: "whole", 2: "next"} {
		var line struct{ Msg string }
		if len(lines) != 4 || json.Unmarshal([]byte(lines[i]), &line) != nil || line.Msg != msg {
			t.Fatalf("got %q, want a part of a line and two whole ones", lines)
		}
	}
	if got, _ := testenv.Metric(t, tel.Registry, "weft_log_dropped_total"); got != 2 {
		t.Errorf("dropped: got %v, want 2", got)
	}
}
