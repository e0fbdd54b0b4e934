package stack

import (
	"archive/tar"
	"archive/zip"
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/ulikunitz/xz"
)

// unpackZip unpacks a zip whose entries all lie under one top directory into dir,
// without that directory.
func unpackZip(archive, dir string) error {
	reader, err := zip.OpenReader(archive)
	if err != nil {
		return err
	}
	defer func() { _ = reader.Close() }()
	return inTree(dir, func(t *tree) error {
		for _, entry := range reader.File {
			_, name, found := strings.Cut(entry.Name, "/")
			if !found {
				return fmt.Errorf("%s: lies beside the top directory", entry.Name)
			}
			content, err := entry.Open()
			if err != nil {
				return fmt.Errorf("%s: %w", entry.Name, err)
			}
			err = t.add(path.Clean(name), entry.Mode(), content)
			if err = errors.Join(err, content.Close()); err != nil {
				return fmt.Errorf("%s: %w", entry.Name, err)
			}
		}
		return nil
	})
}

// unpackPostgresJar unpacks the one .txz in the jar.
func unpackPostgresJar(archive, dir string) error {
	reader, err := zip.OpenReader(archive)
	if err != nil {
		return err
	}
	defer func() { _ = reader.Close() }()
	for _, entry := range reader.File {
		if path.Ext(entry.Name) != ".txz" {
			continue
		}
		content, err := entry.Open()
		if err != nil {
			return err
		}
		defer func() { _ = content.Close() }()
		return unpackTarXZ(content, dir)
	}
	return errors.New("no .txz in it")
}

func unpackTarXZ(r io.Reader, dir string) error {
	plain, err := xz.NewReader(bufio.NewReaderSize(r, 1<<16))
	if err != nil {
		return err
	}
	entries := tar.NewReader(plain)
	return inTree(dir, func(t *tree) error {
		for {
			header, err := entries.Next()
			if errors.Is(err, io.EOF) {
				return nil
			}
			if err != nil {
				return err
			}
			mode, content := header.FileInfo().Mode(), io.Reader(entries)
			if mode.Type() == fs.ModeSymlink {
				content = strings.NewReader(header.Linkname)
			}
			if err := t.add(path.Clean(header.Name), mode, content); err != nil {
				return fmt.Errorf("%s: %w", header.Name, err)
			}
		}
	})
}

var errEscapes = errors.New("leads out of the directory it is unpacked into")

// tree writes into one directory and nowhere else, whatever the names say.
type tree struct{ root *os.Root }

// inTree makes dir and has fill write into it. As root, another user must be able to read
// the result, so the umask does not count.
func inTree(dir string, fill func(*tree) error) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	if err := fill(&tree{root}); err != nil {
		return err
	}
	return fs.WalkDir(root.FS(), ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.IsDir() {
			return err
		}
		return root.Chmod(name, 0o755)
	})
}

// add writes an entry of an archive. The content of a symbolic link is its target.
func (t *tree) add(name string, mode fs.FileMode, content io.Reader) error {
	if !filepath.IsLocal(name) {
		return errEscapes
	}
	if mode.IsDir() {
		return t.root.MkdirAll(name, 0o755)
	}
	if err := t.root.MkdirAll(path.Dir(name), 0o755); err != nil {
		return err
	}
	switch {
	case mode.IsRegular():
		return t.file(name, mode, content)
	case mode.Type() == fs.ModeSymlink:
		target, err := io.ReadAll(io.LimitReader(content, 4096))
		if err != nil {
			return err
		}
		if to := string(target); path.IsAbs(to) || !filepath.IsLocal(path.Join(path.Dir(name), to)) {
			return errEscapes
		}
		return t.root.Symlink(string(target), name)
	default:
		return fmt.Errorf("entry of kind %v", mode.Type())
	}
}

func (t *tree) file(name string, mode fs.FileMode, content io.Reader) error {
	file, err := t.root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(file, content)
	if err == nil {
		err = file.Chmod(mode.Perm() | 0o444)
	}
	return errors.Join(err, file.Close())
}
