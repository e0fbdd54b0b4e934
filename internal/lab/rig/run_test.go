package rig

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestDir(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	for _, c := range []struct {
		name              string
		given, keep       bool
		fails, interrupts bool
		stays             bool
	}{
		{name: "CleanRunLeavesNothing"},
		{name: "GivenDirectoryStays", given: true, stays: true},
		{name: "RunMayKeepItsOwn", keep: true, stays: true},
		{name: "FailureKeepsTheFiles", fails: true, stays: true},
		{name: "InterruptionLeavesNothing", fails: true, interrupts: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			d := Dir{Program: "rigtest", Holds: "logs"}
			if c.given {
				d.Path = filepath.Join(t.TempDir(), "new", "one")
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			var path string
			err := d.Run(ctx, func(_ context.Context, p string) error {
				path, d.Keep = p, c.keep
				if c.interrupts {
					cancel()
				}
				if c.fails {
					return broken
				}
				return nil
			})
			t.Cleanup(func() { _ = os.RemoveAll(path) })
			switch {
			case c.interrupts:
				if !errors.Is(err, ErrInterrupted) {
					t.Errorf("got %v, want %v", err, ErrInterrupted)
				}
			case c.fails:
				if !errors.Is(err, broken) || !strings.HasSuffix(err.Error(), "logs: "+path) {
					t.Errorf("got %v, want the cause and where the logs are", err)
				}
			case err != nil:
				t.Errorf("got %v, want none", err)
			}
			if _, err := os.Stat(path); (err == nil) != c.stays {
				t.Errorf("directory after the run: got %v, want it there %v", err, c.stays)
			}
		})
	}
}
