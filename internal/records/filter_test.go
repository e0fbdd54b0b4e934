package records_test

import (
	"testing"
	"time"

	"github.com/samuelhu324-dev/weft/internal/records"
)

func TestMomentReadsDaysAsOtherSettingsDo(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 5, 4, 3, 2, 1, 0, time.UTC)
	for text, want := range map[string]time.Time{
		"7d": now.AddDate(0, 0, -7), "0d": now, "90m": now.Add(-90 * time.Minute), "2026-05-01T00:00:00Z": time.Date(2026, 5, 1, 0, 0, 0, 0, time.UTC),
	} {
		var m records.Moment
		if err := m.Set(text); err != nil || !m.Given() || !m.Resolve(now).Equal(want) {
			t.Errorf("%s: got %v, %v, want %v", text, m.Resolve(now), err, want)
		}
	}
	for _, text := range []string{"d", "-1d", "1.5d", "7 d", "yesterday", "-3h", "99999d", "0001-01-01T00:00:00Z"} {
		var m records.Moment
		if err := m.Set(text); err == nil || m.Given() {
			t.Errorf("%q: got %v, want a refusal", text, m.Resolve(now))
		}
	}
}
