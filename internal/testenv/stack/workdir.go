package stack

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/gofrs/flock"
)

const (
	workPrefix = "weft-stack-"
	workLock   = "lock"
	// unlockedAge is more than it takes to make a directory and to lock it.
	unlockedAge = 10 * time.Minute
)

// workDir is where the servers of one guardian keep their data. Its lock is held as
// long as the guardian lives; the kernel lets go of it in every other case.
type workDir struct {
	path string
	lock *flock.Flock
}

func newWorkDir(root string, who *account) (*workDir, error) {
	path, err := os.MkdirTemp(root, workPrefix)
	if err != nil {
		return nil, explainDisk(err, root)
	}
	dir := &workDir{path: path}
	// Locked before it gets the name that sweep looks for.
	dir.lock = flock.New(filepath.Join(path, workLock+".new"), flock.SetPermissions(0o600))
	if _, err = dir.lock.TryLock(); err == nil {
		err = os.Rename(dir.lock.Path(), filepath.Join(path, workLock))
	}
	if err == nil && who != nil {
		err = os.Chmod(path, 0o711)
	}
	if err != nil {
		return nil, errors.Join(explainDisk(err, root), dir.remove())
	}
	return dir, nil
}

// sub makes a directory that belongs to the servers' account.
func (d *workDir) sub(who *account, elem ...string) (string, error) {
	name := filepath.Join(append([]string{d.path}, elem...)...)
	if err := os.Mkdir(name, 0o700); err != nil {
		return "", explainDisk(err, d.path)
	}
	return name, who.own(name)
}

// remove tries for a while: a process that is just dying may still write.
func (d *workDir) remove() error {
	defer func() { _ = d.lock.Close() }()
	var err error
	for range 50 {
		if err = os.RemoveAll(d.path); err == nil {
			return nil
		}
		time.Sleep(20 * time.Millisecond)
	}
	return err
}

// sweep removes the data of killed guardians of this user.
func sweep(root string) (removed []string) {
	found, _ := filepath.Glob(filepath.Join(root, workPrefix+"*"))
	for _, path := range found {
		if abandoned(path) && os.RemoveAll(path) == nil {
			removed = append(removed, path)
		}
	}
	return removed
}

func abandoned(path string) bool {
	info, err := os.Lstat(path)
	if err != nil || !info.IsDir() {
		return false
	}
	if owner, ok := info.Sys().(*syscall.Stat_t); !ok || int(owner.Uid) != os.Geteuid() {
		return false
	}
	lock := flock.New(filepath.Join(path, workLock), flock.SetFlag(os.O_RDWR))
	free, err := lock.TryLock()
	if errors.Is(err, os.ErrNotExist) {
		return time.Since(info.ModTime()) > unlockedAge
	}
	defer func() { _ = lock.Close() }()
	return err == nil && free
}
