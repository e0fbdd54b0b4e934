package testenv

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/gofrs/flock"

	"github.com/samuelhu324-dev/weft/internal/testenv/process"
)

// buildTimeout is for cold caches on a slow machine.
const buildTimeout = 10 * time.Minute

// Program returns the path of weft or weftlab, built from this tree. All test processes
// of one tree share the binary, so that only the first one that asks links it; no test
// may change it.
func Program(t testing.TB, name string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), buildTimeout)
	defer cancel()
	binary, err := program(ctx, name)
	must(t, "build "+name, err)
	return binary
}

func program(ctx context.Context, name string) (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	gomod, err := process.Go(ctx, "env", "GOMOD")
	if err != nil {
		return "", err
	}
	tree := sha256.Sum256([]byte(gomod))
	dir := filepath.Join(cache, "weft", "test-programs", hex.EncodeToString(tree[:6]))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	lock := flock.New(filepath.Join(dir, "lock"))
	if err := lock.Lock(); err != nil {
		return "", err
	}
	defer func() { _ = lock.Close() }()
	binary := filepath.Join(dir, name)
	// With the name of an existing binary, go build does nothing when that one is up to date.
	compiler := process.Tool{Dir: filepath.Dir(gomod), Env: []string{"CGO_ENABLED=0"}}
	_, err = compiler.Run(ctx, "go", "build", "-o", binary, "./cmd/"+name)
	return binary, err
}
