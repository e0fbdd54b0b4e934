package stack

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
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
	lock *os.File
}

func newWorkDir(root string, who *account) (*workDir, error) {
	path, err := os.MkdirTemp(root, workPrefix)
	if err != nil {
		return nil, explainDisk(err, root)
	}
	dir := &workDir{path: path}
	// Locked before it gets the name that sweep looks for.
	unnamed := filepath.Join(path, workLock+".new")
	dir.lock, err = os.OpenFile(unnamed, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err == nil {
		err = unix.Flock(int(dir.lock.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	}
	if err == nil {
		err = os.Rename(unnamed, filepath.Join(path, workLock))
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
	if d.lock != nil {
		defer func() { _ = d.lock.Close() }()
	}
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
	lock, err := os.OpenFile(filepath.Join(path, workLock), os.O_RDWR, 0)
	if errors.Is(err, os.ErrNotExist) {
		return time.Since(info.ModTime()) > unlockedAge
	}
	if err != nil {
		return false
	}
	defer func() { _ = lock.Close() }()
	return unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil
}
