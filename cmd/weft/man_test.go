package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestMan(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if r := weft(t, []string{"SOURCE_DATE_EPOCH=1700000000"}, "man", dir); r.code != 0 {
		t.Fatalf("got code %d: %s", r.code, r.errOut)
	}
	page, err := os.ReadFile(filepath.Join(dir, "weft.1"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"Nov 2023"`, "\n  64  the command line is wrong\n", `\fBweft-run(1)\fP`} {
		if !strings.Contains(string(page), want) {
			t.Errorf("weft.1 lacks %q:\n%s", want, page)
		}
	}
	for _, name := range []string{"weft-run.1", "weft-migrate-up.1", "weft-status.1"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			t.Error(err)
		}
	}
}

func TestManNeedsADate(t *testing.T) {
	t.Parallel()
	for _, env := range [][]string{nil, {"SOURCE_DATE_EPOCH=yesterday"}} {
		if r := weft(t, env, "man", t.TempDir()); r.code != exitUsage || !strings.Contains(r.errOut, "SOURCE_DATE_EPOCH") {
			t.Errorf("with %v: got code %d and %q", env, r.code, r.errOut)
		}
	}
}

// TestCommandLinePage holds that docs/cli.md is the help of this build; `make docs` writes it.
func TestCommandLinePage(t *testing.T) {
	t.Parallel()
	r := weft(t, nil, "man", "--markdown")
	if r.code != 0 || r.errOut != "" {
		t.Fatalf("got code %d and %q on standard error", r.code, r.errOut)
	}
	golden(t, "../../../docs/cli.md", r.out)
}
