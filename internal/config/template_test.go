package config

import (
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write deploy/deb/weft.yaml")

// TestTemplate holds that the file that is shipped is this build's, sets nothing as it
// is, and sets nothing but the defaults when all of it is in force.
func TestTemplate(t *testing.T) {
	t.Parallel()
	const shipped = "../../deploy/deb/weft.yaml"
	if *update {
		if err := os.WriteFile(shipped, []byte(Template()), 0o640); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(shipped)
	if err != nil {
		t.Fatal(err)
	}
	if string(text) != Template() {
		t.Errorf("%s is not what Template returns; run `make docs`", shipped)
	}
	var all []string
	settings := regexp.MustCompile(`^#(  )?[a-z_]+: .|^#[a-z]+:$`)
	for line := range strings.Lines(string(text)) {
		if settings.MatchString(strings.TrimSuffix(line, "\n")) {
			line = line[1:]
		}
		all = append(all, line)
	}
	load := func(text string) Config {
		t.Helper()
		path := filepath.Join(t.TempDir(), "weft.yaml")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		c, err := Load(Options{File: path, Environ: []string{"DATABASE_URL=postgres://x"}})
		if err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		return c
	}
	want, err := Load(Options{Environ: []string{"DATABASE_URL=postgres://x"}})
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{string(text), strings.Join(all, "")} {
		got := load(text).Effective()
		for i, w := range want.Effective() {
			// The one is drawn, the other follows from a ratio that is set.
			if w.Key != "instance" && w.Key != "tracing.sampler" && got[i].Value != w.Value {
				t.Errorf("%s: %q by the file, %q without", w.Key, got[i].Value, w.Value)
			}
		}
	}
	if n := strings.Count(strings.Join(all, ""), "\n#  "); n > 3 {
		t.Errorf("%d settings have no value:\n%s", n, strings.Join(all, ""))
	}
}
