package daemon

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/samuelhu324-dev/weft/internal/config"
	"github.com/samuelhu324-dev/weft/projections"
)

// A declaration is checked again each hour: an error is told when it comes, and once more when it has gone and come back.
func TestCheckIsRepeated(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		slow, other := projections.Finding{What: "slow", Warning: true}, projections.Finding{What: "other", Warning: true}
		off, swapped := projections.Finding{What: "a trigger is disabled"}, projections.Finding{What: "no trigger"}
		answers := [][]projections.Finding{{off}, {other, off, swapped}, nil, {off}}
		core, logs := observer.New(zapcore.DebugLevel)
		d := &daemon{cfg: config.Default(), log: zap.New(core)}
		began, silent := time.Now(), true
		d.repeatCheck(ctx, "products", func(context.Context) ([]projections.Finding, error) {
			if silent {
				silent = false
				return nil, errors.New("no answer")
			}
			return []projections.Finding{slow}, nil
		}, func(context.Context) ([]projections.Finding, error) {
			found := answers[0]
			if answers = answers[1:]; len(answers) == 0 {
				time.AfterFunc(time.Minute, cancel)
			}
			return found, nil
		})
		if took, want := time.Since(began), 30*time.Second+4*time.Hour+time.Minute; took != want {
			t.Errorf("the checks took %v, want %v", took, want)
		}
		var got []string
		for _, e := range logs.All() {
			got = append(got, e.Level.String()+" "+e.Message)
		}
		const say = "check of the declared projection: "
		if want := []string{"warn " + say + "slow", "error " + say + "a trigger is disabled", "error " + say + "no trigger", "error " + say + "a trigger is disabled"}; !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	})
}
