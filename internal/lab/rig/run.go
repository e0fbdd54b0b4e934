package rig

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/samuelhu324-dev/weft/internal/testenv/process"
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

// Tool says how a program of this machine is run to its end.
type Tool struct {
	Dir   string   // where it runs; empty: here
	Env   []string // on top of Environ
	Stdin string

	Environ []string // nil: this process's
}

// Run returns the standard output, also beside an error, which has the command, what it has said on
// standard error and, unless ctx has ended, an [exec.ExitError].
func (t Tool) Run(ctx context.Context, argv ...string) (string, error) {
	runtime.LockOSThread() // the kernel kills the program when the thread that has started it ends
	defer runtime.UnlockOSThread()
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	if t.Environ == nil {
		t.Environ = os.Environ()
	}
	cmd.Dir, cmd.Env, cmd.Stdin = t.Dir, slices.Concat(t.Environ, t.Env), strings.NewReader(t.Stdin)
	cmd.WaitDelay = pipeGrace
	cmd.SysProcAttr = process.Attributes(nil, syscall.SIGKILL)
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) } // its children are in its group
	var out, diagnosis bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &diagnosis
	if err := cmd.Run(); err != nil {
		argv = append([]string{filepath.Base(argv[0])}, argv[1:]...)
		return out.String(), fmt.Errorf("%s: %w\n%s", strings.Join(argv, " "), cmp.Or(context.Cause(ctx), err), bytes.TrimSpace(diagnosis.Bytes()))
	}
	return out.String(), nil
}
