//go:build debian || release

package deploy_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"
)

// run returns what a command says on both outputs.
func run(t *testing.T, dir string, env []string, name string, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), env...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func must(t *testing.T, dir string, env []string, name string, args ...string) string {
	t.Helper()
	out, err := run(t, dir, env, name, args...)
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return out
}

func digest(t *testing.T, path string) string {
	t.Helper()
	sum := sha256.Sum256([]byte(read(t, path)))
	return hex.EncodeToString(sum[:])
}

// checkBill holds that a bill of materials is that of the binary and names every module of it.
func checkBill(t *testing.T, bill, binary string) {
	t.Helper()
	type component struct {
		Name, Version string
		Hashes        []struct{ Content string }
	}
	var got struct {
		BOMFormat   string `json:"bomFormat"`
		SpecVersion string `json:"specVersion"`
		Metadata    struct{ Component component }
		Components  []component
	}
	if err := json.Unmarshal([]byte(read(t, bill)), &got); err != nil {
		t.Fatalf("%s: %v", bill, err)
	}
	if got.BOMFormat != "CycloneDX" || got.SpecVersion != "1.6" {
		t.Errorf("%s: %s %s, want CycloneDX 1.6", bill, got.BOMFormat, got.SpecVersion)
	}
	weft := got.Metadata.Component
	if len(weft.Hashes) != 1 || weft.Hashes[0].Content != digest(t, binary) {
		t.Errorf("%s: the binary has the checksums %v, want %s", bill, weft.Hashes, digest(t, binary))
	}
	var names, want []string
	for _, c := range got.Components {
		names = append(names, c.Name+" "+c.Version)
	}
	for line := range strings.Lines(must(t, ".", nil, "go", "version", "-m", binary)) {
		f := strings.Fields(line)
		switch f[0] {
		case "dep":
			want = append(want, f[1]+" "+f[2])
		case binary + ":":
			want = append(want, "std "+strings.TrimPrefix(f[1], "go"))
		}
	}
	slices.Sort(names)
	slices.Sort(want)
	if !slices.Equal(names, want) || len(want) < 20 {
		t.Errorf("%s: names %v, want %v", bill, names, want)
	}
}
