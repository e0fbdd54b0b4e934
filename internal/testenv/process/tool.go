package process

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"
)

// pipeGrace is for output that something else still holds open when a program ends.
const pipeGrace = 2 * time.Second

// Tool says how a program of this machine is run to its end.
type Tool struct {
	Dir   string    // where it runs; empty: here
	Env   []string  // on top of Environ
	Stdin io.Reader // nil: nothing

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
	cmd.Dir, cmd.Env, cmd.Stdin = t.Dir, slices.Concat(t.Environ, t.Env), t.Stdin
	cmd.WaitDelay = pipeGrace
	cmd.SysProcAttr = Attributes(nil, syscall.SIGKILL)
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) } // its children are in its group
	var out, diagnosis bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &diagnosis
	if err := cmd.Run(); err != nil {
		argv = append([]string{filepath.Base(argv[0])}, argv[1:]...)
		return out.String(), fmt.Errorf("%s: %w\n%s", strings.Join(argv, " "), cmp.Or(context.Cause(ctx), err), bytes.TrimSpace(diagnosis.Bytes()))
	}
	return out.String(), nil
}
