package supply_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

const tree = "../.."

// dependencies returns the directories of the tree with a file that names what others wrote,
// by Dependabot's word for its kind.
func dependencies(t *testing.T) map[string][]string {
	t.Helper()
	kinds := map[string]string{
		"go.mod": "gomod", "requirements.txt": "pip", "pyproject.toml": "pip",
		"Containerfile": "docker", "compose.yaml": "docker-compose", "package.json": "npm", "pom.xml": "maven",
	}
	found := map[string][]string{"github-actions": {"/"}}
	err := filepath.WalkDir(tree, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && path != tree && (d.Name() == "testdata" || strings.HasPrefix(d.Name(), ".")) {
			return filepath.SkipDir
		}
		kind, ok := kinds[d.Name()]
		if !ok {
			return nil
		}
		dir, err := filepath.Rel(tree, filepath.Dir(path))
		found[kind] = append(found[kind], filepath.Join("/", dir))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for kind, dirs := range found {
		slices.Sort(dirs)
		found[kind] = slices.Compact(dirs)
	}
	return found
}

func TestUpdatesAreProposedForEverything(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join(tree, ".github/dependabot.yml"))
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Version int
		Updates []struct {
			Ecosystem   string `yaml:"package-ecosystem"`
			Directory   string
			Directories []string
			Schedule    struct{ Interval string }
		}
	}
	if err := yaml.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	got := map[string][]string{}
	for _, u := range file.Updates {
		if u.Schedule.Interval != "weekly" {
			t.Errorf("%s: proposed %q, want weekly", u.Ecosystem, u.Schedule.Interval)
		}
		for _, dir := range append(u.Directories, u.Directory) {
			if dir != "" {
				got[u.Ecosystem] = append(got[u.Ecosystem], dir)
			}
		}
	}
	want := dependencies(t)
	for kind, dirs := range want {
		slices.Sort(got[kind])
		if !slices.Equal(got[kind], dirs) {
			t.Errorf("%s: updates are proposed for %q, want %q", kind, got[kind], dirs)
		}
	}
	if file.Version != 2 || len(got) != len(want) {
		t.Errorf("version %d for %d kinds, want 2 for %d", file.Version, len(got), len(want))
	}
}
