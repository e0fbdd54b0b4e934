package stack

import (
	"maps"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// onlyOnPath is an environment with nothing but programs that print what they are given.
func onlyOnPath(t *testing.T, programs, more map[string]string) (getenv func(string) string) {
	t.Helper()
	env := map[string]string{"PATH": programDir(t, programs)}
	maps.Copy(env, more)
	return func(name string) string { return env[name] }
}

func programDir(t *testing.T, programs map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, output := range programs {
		script := "#!/bin/sh\ncat <<'END'\n" + output + "\nEND\n"
		// A process forked meanwhile would hold the file open for writing: "text file busy".
		syscall.ForkLock.RLock()
		err := os.WriteFile(filepath.Join(dir, name), []byte(script), 0o755)
		syscall.ForkLock.RUnlock()
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

const (
	java8  = "Property settings:\n    java.home = /opt/jdk8/jre\n    java.specification.version = 1.8\n"
	java21 = "Property settings:\n    java.home = /opt/jdk 21\n    java.specification.version = 21\n    java.version = 21.0.1\n"
)

func TestPrerequisitesErrorNamesEverythingMissing(t *testing.T) {
	t.Parallel()

	cases := map[string]struct {
		path            map[string]string
		java            int
		maven           bool
		want, wantNever string
	}{
		"Both":         {nil, 17, true, "no JDK 17 or newer on the PATH or in JAVA_HOME and no mvn", "\n"},
		"MavenOnly":    {map[string]string{"java": java21}, 17, true, "no mvn", "JDK 17"},
		"JavaOnly":     {map[string]string{"mvn": ""}, 17, true, "no JDK 17", "no mvn"},
		"OldJava":      {map[string]string{"java": java8, "mvn": ""}, 17, true, "(/opt/jdk8/jre is 8)", "no mvn"},
		"BrokenJava":   {map[string]string{"java": "no such thing", "mvn": ""}, 17, true, "no JDK 17", "no mvn"},
		"CachedServer": {nil, 17, false, "no JDK 17", "no mvn"},
		"TooOldForIt":  {map[string]string{"java": java21}, 25, false, "no JDK 25 or newer on the PATH or in JAVA_HOME (/opt/jdk 21 is 21)", "no mvn"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := prerequisites(t.Context(), onlyOnPath(t, c.path, nil), c.java, c.maven)
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
	t.Parallel()

	env := onlyOnPath(t, map[string]string{"java": java21, "mvn": ""}, nil)
	if got, err := prerequisites(t.Context(), env, 17, true); err != nil || got != "/opt/jdk 21" {
		t.Errorf("java home: got %q (%v), want %q", got, err, "/opt/jdk 21")
	}
	if got, err := prerequisites(t.Context(), onlyOnPath(t, nil, nil), 0, false); err != nil || got != "" {
		t.Errorf("nothing wanted: got %q, %v, want nothing", got, err)
	}
}

func TestJavaHomeComesBeforeThePath(t *testing.T) {
	t.Parallel()

	home := t.TempDir()
	if err := os.Symlink(programDir(t, map[string]string{"java": java21}), filepath.Join(home, "bin")); err != nil {
		t.Fatal(err)
	}
	env := onlyOnPath(t, map[string]string{"java": java8}, map[string]string{"JAVA_HOME": home})
	if got, err := prerequisites(t.Context(), env, 17, false); err != nil || got != "/opt/jdk 21" {
		t.Errorf("java home: got %q (%v), want that of JAVA_HOME", got, err)
	}
}
