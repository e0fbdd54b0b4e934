package stack

import (
	"os"

	"golang.org/x/sys/unix"
)

// adoptOrphans makes orphaned descendants children of this process, so that killChildren finds them.
func adoptOrphans() error {
	return unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
}

func syncFilesystem(dir string) error {
	file, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	return unix.Syncfs(int(file.Fd()))
}

// removeSharedMemory removes a System V segment, where it may.
func removeSharedMemory(id int) { _, _ = unix.SysvShmCtl(id, unix.IPC_RMID, nil) }
