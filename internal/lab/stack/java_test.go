package stack

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// program puts a script that prints output on the PATH, alone there.
func onlyOnPath(t *testing.T, scripts map[string]string) {
	t.Helper()
	dir := t.TempDir()
	for name, output := range scripts {
		script := "#!/bin/sh\ncat <<'END'\n" + output + "\nEND\n"
		if err := os.WriteFile(filepath.Join(dir, name), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("/bin/cat", filepath.Join(dir, "cat")); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir)
	t.Setenv("JAVA_HOME", "")
	t.Setenv("ES_JAVA_HOME", "")
}

const (
	java8  = "Property settings:\n    java.home = /opt/jdk8/jre\n    java.specification.version = 1.8\n"
	java21 = "Property settings:\n    java.home = /opt/jdk 21\n    java.specification.version = 21\n    java.version = 21.0.1\n"
)

func TestPrerequisitesNameAllThatIsMissingInOneLine(t *testing.T) {
	cases := map[string]struct {
		path            map[string]string
		java, maven     bool
		want, wantNever string
	}{
		"Both":         {nil, true, true, "no JDK 17 or newer and no mvn", "\n"},
		"MavenOnly":    {map[string]string{"java": java21}, true, true, "no mvn", "JDK 17"},
		"JavaOnly":     {map[string]string{"mvn": ""}, true, true, "no JDK 17", "no mvn"},
		"OldJava":      {map[string]string{"java": java8, "mvn": ""}, true, true, "(/opt/jdk8/jre is 8)", "no mvn"},
		"BrokenJava":   {map[string]string{"java": "no such thing", "mvn": ""}, true, true, "no JDK 17", "no mvn"},
		"CachedServer": {nil, true, false, "no JDK 17", "no mvn"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			onlyOnPath(t, c.path)
			_, err := prerequisites(t.Context(), c.java, c.maven)
			if err == nil {
				t.Fatal("prerequisites: got no error, want one")
			}
			got := err.Error()
			for _, want := range []string{c.want, "apt install default-jdk-headless maven", "DATABASE_URL and ELASTIC_URL"} {
				if !strings.Contains(got, want) {
					t.Errorf("message: got %q, want %q in it", got, want)
				}
			}
			if strings.Contains(got, c.wantNever) || strings.Contains(got, "\n") {
				t.Errorf("message: got %q, want one line without %q", got, c.wantNever)
			}
		})
	}
}

func TestPrerequisitesFound(t *testing.T) {
	onlyOnPath(t, map[string]string{"java": java21, "mvn": ""})
	if got, err := prerequisites(t.Context(), true, true); err != nil || got != "/opt/jdk 21" {
		t.Errorf("java home: got %q (%v), want %q", got, err, "/opt/jdk 21")
	}
	onlyOnPath(t, nil)
	if got, err := prerequisites(t.Context(), false, false); err != nil || got != "" {
		t.Errorf("nothing wanted: got %q, %v, want nothing", got, err)
	}
}

func TestJavaHomeComesBeforeThePath(t *testing.T) {
	onlyOnPath(t, map[string]string{"java": java8})
	home := t.TempDir()
	if err := os.Mkdir(filepath.Join(home, "bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	script := "#!/bin/sh\ncat <<'END'\n" + java21 + "\nEND\n"
	if err := os.WriteFile(filepath.Join(home, "bin/java"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("JAVA_HOME", home)
	if got, err := prerequisites(t.Context(), true, false); err != nil || got != "/opt/jdk 21" {
		t.Errorf("java home: got %q (%v), want that of JAVA_HOME", got, err)
	}
}
