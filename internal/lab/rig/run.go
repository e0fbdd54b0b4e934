package rig

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"

	"github.com/spf13/cobra"
)

// ErrInterrupted is the error of a run whose context ended.
var ErrInterrupted = errors.New("interrupted; what was started is down again")

// RunE returns a cobra.Command's RunE whose context ends with Ctrl-C, too. The main function
// handles the other signals.
func RunE(run func(ctx context.Context, cmd *cobra.Command) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, _ []string) error {
		ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt)
		defer stop()
		return run(ctx, cmd)
	}
}

// Dir says where a run leaves its files.
type Dir struct {
	Path    string // given by the user; empty means a temporary directory
	Program string // in the name of a temporary directory
	Holds   string // what a failed run leaves there: logs, evidence
	// Keep is set by a run that wants its temporary directory to stay.
	Keep bool
}

// Run makes the directory, calls work with its path, and removes a temporary one unless work
// has failed. It returns [ErrInterrupted] when ctx has ended, and otherwise work's error with
// the directory's name.
func (d *Dir) Run(ctx context.Context, work func(ctx context.Context, path string) error) (err error) {
	path := d.Path
	if path == "" {
		path, err = os.MkdirTemp("", "weft-"+d.Program+"-")
	} else if path, err = filepath.Abs(path); err == nil {
		err = os.MkdirAll(path, 0o755)
	}
	if err != nil {
		return fmt.Errorf("directory for %s: %w", d.Holds, err)
	}
	switch err = work(ctx, path); {
	case err != nil && ctx.Err() != nil:
		err = ErrInterrupted
	case err != nil:
		return fmt.Errorf("%w\n%s: %s", err, d.Holds, path)
	}
	if d.Path == "" && !d.Keep {
		err = errors.Join(err, os.RemoveAll(path))
	}
	return err
}
