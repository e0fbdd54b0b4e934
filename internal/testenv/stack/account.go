package stack

import (
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
)

// account is whom the servers run as, where that is not the caller: neither server
// runs as root.
type account struct {
	UID, GID uint32
}

// serverAccount is nil for an ordinary user.
func serverAccount(uid int) *account {
	if uid != 0 {
		return nil
	}
	nobody := &account{UID: 65534, GID: 65534}
	found, err := user.Lookup("nobody")
	if err != nil {
		return nobody
	}
	id, errUID := strconv.ParseUint(found.Uid, 10, 32)
	gid, errGID := strconv.ParseUint(found.Gid, 10, 32)
	if errUID != nil || errGID != nil {
		return nobody
	}
	return &account{UID: uint32(id), GID: uint32(gid)}
}

func (a *account) credential() *syscall.Credential {
	if a == nil {
		return nil
	}
	return &syscall.Credential{Uid: a.UID, Gid: a.GID}
}

// own gives a file or directory to the account.
func (a *account) own(name string) error {
	if a == nil {
		return nil
	}
	return os.Chown(name, int(a.UID), int(a.GID))
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
			return fmt.Errorf("%s: the servers run as uid %d, which may not enter %s (mode %v)", dir, a.UID, at, info.Mode().Perm())
		}
		if at == filepath.Dir(at) {
			return nil
		}
	}
}

func (a *account) enters(info fs.FileInfo) bool {
	owner, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case ok && owner.Uid == a.UID:
		return info.Mode()&0o100 != 0
	case ok && owner.Gid == a.GID:
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
