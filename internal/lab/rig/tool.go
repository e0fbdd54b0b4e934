package rig

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
)

// Tool says how a program of this machine is run to its end.
type Tool struct {
	Dir   string   // where it runs; empty: here
	Env   []string // on top of this process's
	Stdin string
}

// Run returns the standard output. The error has the command, and what it has said on standard error.
func (t Tool) Run(ctx context.Context, argv ...string) (string, error) {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Dir, cmd.Env, cmd.Stdin = t.Dir, append(os.Environ(), t.Env...), strings.NewReader(t.Stdin)
	cmd.WaitDelay = pipeGrace
	var out, diagnosis bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &diagnosis
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s: %w\n%s", strings.Join(argv, " "), cmp.Or(context.Cause(ctx), err), bytes.TrimSpace(diagnosis.Bytes()))
	}
	return out.String(), nil
}
