package bench

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

const buildTimeout = 10 * time.Minute

// buildRevision builds the weft of a git revision in a copy of its tree below dir. It leaves
// the repository of the current directory unchanged.
func buildRevision(ctx context.Context, dir, revision string) (binary string, err error) {
	ctx, cancel := context.WithTimeout(ctx, buildTimeout)
	defer cancel()
	top, err := output(ctx, ".", "git", "rev-parse", "--show-toplevel")
	if err != nil {
		return "", err
	}
	commit, err := output(ctx, top, "git", "rev-parse", "--verify", "--end-of-options", revision+"^{commit}")
	if err != nil {
		return "", err
	}
	tree := filepath.Join(dir, "base")
	if err := os.Mkdir(tree, 0o755); err != nil {
		return "", fmt.Errorf("tree of %s: %w", revision, err)
	}
	archive := filepath.Join(dir, "base.tar")
	binary = filepath.Join(dir, "weft-base")
	for _, step := range []struct {
		in   string
		argv []string
	}{
		{top, []string{"git", "archive", "--format=tar", "--output", archive, commit}},
		{tree, []string{"tar", "-xf", archive}},
		{tree, []string{"go", "build", "-buildvcs=false", "-o", binary, "./cmd/weft"}},
	} {
		if _, err := output(ctx, step.in, step.argv...); err != nil {
			return "", fmt.Errorf("build %s: %w", revision, err)
		}
	}
	return binary, nil
}

func output(ctx context.Context, dir string, argv ...string) (string, error) {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	var diagnosis bytes.Buffer
	cmd.Dir, cmd.Stderr = dir, &diagnosis
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s: %w\n%s", strings.Join(argv, " "), err, diagnosis.Bytes())
	}
	return strings.TrimSpace(string(out)), nil
}
