package stack

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
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

// account is whom the servers run as, where that is not the caller: neither server
// runs as root.
type account syscall.Credential

// serverAccount is nil for an ordinary user.
func serverAccount(uid int) *account {
	if uid != 0 {
		return nil
	}
	nobody := &account{Uid: 65534, Gid: 65534}
	found, err := user.Lookup("nobody")
	if err != nil {
		return nobody
	}
	id, errUID := strconv.ParseUint(found.Uid, 10, 32)
	gid, errGID := strconv.ParseUint(found.Gid, 10, 32)
	if errUID != nil || errGID != nil {
		return nobody
	}
	return &account{Uid: uint32(id), Gid: uint32(gid)}
}

func (a *account) credential() *syscall.Credential { return (*syscall.Credential)(a) }

// own gives a file or directory to the account.
func (a *account) own(name string) error {
	if a == nil {
		return nil
	}
	return os.Chown(name, int(a.Uid), int(a.Gid))
}

// reaches says which directory on the way to dir, if any, the account cannot enter.
func (a *account) reaches(dir string) error {
	if a == nil {
		return nil
	}
	resolved, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return err
	}
	for at := resolved; ; at = filepath.Dir(at) {
		info, err := os.Stat(at)
		if err != nil {
			return err
		}
		if !a.enters(info) {
			return fmt.Errorf("%s: the servers run as uid %d, which may not enter %s (mode %v)", dir, a.Uid, at, info.Mode().Perm())
		}
		if at == filepath.Dir(at) {
			return nil
		}
	}
}

func (a *account) enters(info fs.FileInfo) bool {
	owner, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case ok && owner.Uid == a.Uid:
		return info.Mode()&0o100 != 0
	case ok && owner.Gid == a.Gid:
		return info.Mode()&0o010 != 0
	default:
		return info.Mode()&0o001 != 0
	}
}

// dataRoot is the first directory for temporary data that the account can enter.
func dataRoot(a *account, candidates ...string) (string, error) {
	var first error
	for _, dir := range candidates {
		err := a.reaches(dir)
		if err == nil {
			return dir, nil
		}
		if first == nil {
			first = err
		}
	}
	return "", fmt.Errorf("directory for the servers' data: %w", first)
}

// ServerCredential is whom a server runs as that refuses root: nobody for root, nil for anybody
// else.
func ServerCredential() *syscall.Credential { return serverAccount(os.Geteuid()).credential() }
