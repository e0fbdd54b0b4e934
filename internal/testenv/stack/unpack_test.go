package stack

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/ulikunitz/xz"
)

// entry is one of an archive; a target makes it a symbolic link, a name ending in / a directory.
type entry struct {
	name, content, target string
	mode                  fs.FileMode
}

func zipArchive(t *testing.T, entries ...entry) string {
	t.Helper()
	var buffer bytes.Buffer
	writer := zip.NewWriter(&buffer)
	for _, e := range entries {
		header := &zip.FileHeader{Name: e.name, Method: zip.Deflate}
		mode, content := e.mode, e.content
		switch {
		case e.target != "":
			mode, content = fs.ModeSymlink|0o777, e.target
		case e.name[len(e.name)-1] == '/':
			mode = fs.ModeDir | 0o755
		}
		header.SetMode(mode)
		w, err := writer.CreateHeader(header)
		if err != nil {
			t.Fatalf("zip %s: %v", e.name, err)
		}
		if _, err := io.WriteString(w, content); err != nil {
			t.Fatalf("zip %s: %v", e.name, err)
		}
	}
	if err := writer.Close(); err != nil {
		t.Fatalf("zip: %v", err)
	}
	name := filepath.Join(t.TempDir(), "archive.zip")
	if err := os.WriteFile(name, buffer.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

func txz(t *testing.T, entries ...entry) []byte {
	t.Helper()
	var buffer bytes.Buffer
	compressed, err := xz.NewWriter(&buffer)
	if err != nil {
		t.Fatal(err)
	}
	writer := tar.NewWriter(compressed)
	for _, e := range entries {
		header := &tar.Header{Name: e.name, Mode: int64(e.mode), Size: int64(len(e.content)), Typeflag: tar.TypeReg}
		switch {
		case e.target != "":
			header.Typeflag, header.Linkname = tar.TypeSymlink, e.target
		case e.mode&fs.ModeNamedPipe != 0:
			header.Typeflag, header.Mode = tar.TypeFifo, 0o600
		}
		if err := writer.WriteHeader(header); err != nil {
			t.Fatalf("tar %s: %v", e.name, err)
		}
		if _, err := io.WriteString(writer, e.content); err != nil {
			t.Fatalf("tar %s: %v", e.name, err)
		}
	}
	if err := errors.Join(writer.Close(), compressed.Close()); err != nil {
		t.Fatal(err)
	}
	return buffer.Bytes()
}

//nolint:paralleltest // the umask is the process's
func TestUnpackKeepsModesAndLinksWhateverTheUmask(t *testing.T) {
	old := syscall.Umask(0o077)
	defer syscall.Umask(old)

	cases := map[string]func(dir string) error{
		"Zip": func(dir string) error {
			return unpackZip(zipArchive(t,
				entry{name: "server-1/"},
				entry{name: "server-1/bin/run", content: "#!", mode: 0o755},
				entry{name: "server-1/lib/a.so.1", content: "a", mode: 0o644},
				entry{name: "server-1/lib/a.so", target: "a.so.1"},
				entry{name: "server-1/plugins/"},
			), dir)
		},
		"Jar": func(dir string) error {
			inner := txz(t,
				entry{name: "bin/run", content: "#!", mode: 0o755},
				entry{name: "./lib/a.so.1", content: "a", mode: 0o600},
				entry{name: "lib/a.so", target: "a.so.1"},
			)
			return unpackPostgresJar(zipArchive(t,
				entry{name: "META-INF/MANIFEST.MF", content: "x", mode: 0o644},
				entry{name: "postgres.txz", content: string(inner), mode: 0o644},
			), dir)
		},
	}
	for name, unpack := range cases {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "out")
			if err := unpack(dir); err != nil {
				t.Fatalf("unpack: got %v, want none", err)
			}
			for name, want := range map[string]fs.FileMode{
				".": fs.ModeDir | 0o755, "bin": fs.ModeDir | 0o755, "bin/run": 0o755, "lib/a.so.1": 0o644,
			} {
				info, err := os.Stat(filepath.Join(dir, name))
				if err != nil {
					t.Fatal(err)
				}
				if info.Mode() != want {
					t.Errorf("mode of %s: got %v, want %v", name, info.Mode(), want)
				}
			}
			if got, err := os.ReadFile(filepath.Join(dir, "lib/a.so")); err != nil || string(got) != "a" {
				t.Errorf("through the link: got %q (%v), want %q", got, err, "a")
			}
		})
	}
}

func TestUnpackStaysInItsDirectory(t *testing.T) {
	t.Parallel()

	// bad is the entry inside the archive's top directory, where it has one.
	cases := map[string][]entry{
		"ParentInName":    {{name: "../evil", content: "x", mode: 0o644}},
		"DeepParent":      {{name: "a/../../evil", content: "x", mode: 0o644}},
		"AbsoluteLink":    {{name: "link", target: "/etc/passwd"}},
		"LinkOut":         {{name: "a/link", target: "../../evil"}},
		"WriteThroughOut": {{name: "link", target: ".."}, {name: "link/evil", content: "x", mode: 0o644}},
	}
	for name, entries := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			parent := t.TempDir()
			if err := unpackTarXZ(bytes.NewReader(txz(t, entries...)), filepath.Join(parent, "tar")); !errors.Is(err, errEscapes) {
				t.Errorf("tar: got %v, want %v", err, errEscapes)
			}
			var inTop []entry
			for _, e := range entries {
				e.name = "top/" + e.name
				inTop = append(inTop, e)
			}
			if err := unpackZip(zipArchive(t, inTop...), filepath.Join(parent, "zip")); !errors.Is(err, errEscapes) {
				t.Errorf("zip: got %v, want %v", err, errEscapes)
			}
			if _, err := os.Lstat(filepath.Join(parent, "evil")); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("file outside: got %v, want none", err)
			}
		})
	}
}

func TestUnpackRefusesUnknownEntries(t *testing.T) {
	t.Parallel()

	whole := txz(t, entry{name: "bin/run", content: "0123456789", mode: 0o755})
	cases := map[string]func(dir string) error{
		"Pipe": func(dir string) error {
			return unpackTarXZ(bytes.NewReader(txz(t, entry{name: "p", mode: fs.ModeNamedPipe})), dir)
		},
		"CutStream": func(dir string) error { return unpackTarXZ(bytes.NewReader(whole[:len(whole)/2]), dir) },
		"NoInner":   func(dir string) error { return unpackPostgresJar(zipArchive(t, entry{name: "a", mode: 0o644}), dir) },
		"BesideTop": func(dir string) error { return unpackZip(zipArchive(t, entry{name: "a", mode: 0o644}), dir) },
		"NotAnyZip": func(dir string) error { return unpackZip(os.DevNull, dir) },
		"TwiceSame": func(dir string) error {
			return unpackTarXZ(bytes.NewReader(txz(t, entry{name: "a", mode: 0o644}, entry{name: "a", mode: 0o644})), dir)
		},
	}
	for name, unpack := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if err := unpack(filepath.Join(t.TempDir(), "out")); err == nil {
				t.Error("unpack: got no error, want one")
			}
		})
	}
}
