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

	target, err := newTree(dir)
	if err != nil {
		return err
	}
	defer func() { _ = target.close() }()
	for _, entry := range reader.File {
		if err := unpackZipEntry(target, entry); err != nil {
			return fmt.Errorf("%s: %w", entry.Name, err)
		}
	}
	return nil
}

func unpackZipEntry(target *tree, entry *zip.File) error {
	_, name, found := strings.Cut(entry.Name, "/")
	if !found {
		return errors.New("lies beside the top directory")
	}
	if name == "" {
		return nil
	}
	mode := entry.Mode()
	if mode.IsDir() {
		return target.directory(name)
	}
	content, err := entry.Open()
	if err != nil {
		return err
	}
	defer func() { _ = content.Close() }()
	switch {
	case mode.IsRegular():
		return target.file(name, mode, content)
	case mode&fs.ModeSymlink != 0:
		link, err := io.ReadAll(io.LimitReader(content, 4096))
		if err != nil {
			return err
		}
		return target.symlink(name, string(link))
	default:
		return fmt.Errorf("entry of kind %v", mode.Type())
	}
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
	target, err := newTree(dir)
	if err != nil {
		return err
	}
	defer func() { _ = target.close() }()
	entries := tar.NewReader(plain)
	for {
		header, err := entries.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		name := path.Clean(header.Name)
		switch header.Typeflag {
		case tar.TypeDir:
			err = target.directory(name)
		case tar.TypeReg:
			err = target.file(name, header.FileInfo().Mode(), entries)
		case tar.TypeSymlink:
			err = target.symlink(name, header.Linkname)
		default:
			err = fmt.Errorf("entry of kind %q", header.Typeflag)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", header.Name, err)
		}
	}
}

var errEscapes = errors.New("leads out of the directory it is unpacked into")

// tree writes into one directory and nowhere else, whatever the names say. Modes are
// set whatever the umask says: as root, another user must be able to read the result.
type tree struct{ root *os.Root }

func newTree(dir string) (*tree, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	return &tree{root}, root.Chmod(".", 0o755)
}

func (t *tree) close() error { return t.root.Close() }

func (t *tree) directory(name string) error {
	if !filepath.IsLocal(name) {
		return errEscapes
	}
	made := ""
	for part := range strings.SplitSeq(path.Clean(name), "/") {
		made = path.Join(made, part)
		err := t.root.Mkdir(made, 0o755)
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		if err != nil {
			return err
		}
		if err := t.root.Chmod(made, 0o755); err != nil {
			return err
		}
	}
	return nil
}

func (t *tree) file(name string, mode fs.FileMode, content io.Reader) error {
	if err := t.directory(path.Dir(name)); err != nil {
		return err
	}
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

func (t *tree) symlink(name, target string) error {
	if path.IsAbs(target) || !filepath.IsLocal(path.Join(path.Dir(name), target)) {
		return errEscapes
	}
	if err := t.directory(path.Dir(name)); err != nil {
		return err
	}
	return t.root.Symlink(target, name)
}
