package chaos

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/samuelhu324-dev/weft/internal/lab/rig"
	"github.com/samuelhu324-dev/weft/internal/testenv/history"
)

// otherBuild returns the binary of another build, nothing for nothing.
func otherBuild(ctx context.Context, what, dir string) (binary string, err error) {
	if what == "" {
		return "", nil
	}
	if info, err := os.Stat(what); err == nil && !info.IsDir() {
		return filepath.Abs(what)
	}
	if binary, err = rig.BuildRevision(ctx, dir, what); err != nil {
		return "", fmt.Errorf("%s is neither a file nor a revision that can be built: %w", what, err)
	}
	return binary, nil
}

// start is that of a process.
type start struct {
	name  string
	at    time.Time
	other bool // of the other build
}

// pick notes a start. With another build, a member's processes are of both in turns, and the
// first ones of two neighbours differ.
func (r *run) pick(m *rig.Member, binary string) string {
	other := len(r.Members())%2 == 0
	for _, s := range slices.Backward(r.starts) {
		if s.name == m.Name {
			other = s.other != (binary == "")
			break
		}
	}
	other = other && r.otherBinary != ""
	r.starts = append(r.starts, start{m.Name, time.Now(), other})
	if binary == "" && other {
		return r.otherBinary
	}
	return binary
}

// otherTerms counts the terms that instances of the other build began.
func otherTerms(terms []history.Term, starts []start) (n int) {
	for _, t := range terms {
		for _, s := range slices.Backward(starts) {
			if s.name == t.Instance && s.at.Before(t.At) {
				if s.other {
					n++
				}
				break
			}
		}
	}
	return n
}
