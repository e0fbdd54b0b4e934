package stack

import (
	"os"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
)

// adoptOrphans makes orphaned descendants children of this process, so that killChildren finds them.
func adoptOrphans() error {
	return unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
}

// EndWithGoRun has the kernel send this process a SIGTERM when the `go run` that has started it, if one
// has, is gone: it dies of signals that it does not pass on.
func EndWithGoRun() {
	parent, err := procfs.NewProc(os.Getppid())
	if err != nil {
		return
	}
	if name, err := parent.Comm(); err == nil && name == "go" {
		_ = unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGTERM), 0, 0, 0)
	}
}

func syncFilesystem(dir string) error {
	file, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	return unix.Syncfs(int(file.Fd()))
}

// inMemory returns directories in memory that quick servers may keep their data in: none where
// somebody has said where temporary files go, and none on a small machine.
func inMemory() []string {
	const dir, room, free = "/dev/shm", 4 << 30, 8 << 20 // of the directory, in bytes; of the machine, in KiB
	var fs unix.Statfs_t
	if os.Getenv("TMPDIR") != "" || unix.Statfs(dir, &fs) != nil || fs.Type != unix.TMPFS_MAGIC {
		return nil
	}
	// Elasticsearch loads a library from its directory.
	if fs.Flags&unix.ST_NOEXEC != 0 || fs.Bavail*uint64(fs.Bsize) < room {
		return nil
	}
	proc, err := procfs.NewDefaultFS()
	if err != nil {
		return nil
	}
	memory, err := proc.Meminfo()
	if err != nil || memory.MemAvailable == nil || *memory.MemAvailable < free {
		return nil
	}
	return []string{dir}
}

// removeSharedMemory removes a System V segment, where it may.
func removeSharedMemory(id int) { _, _ = unix.SysvShmCtl(id, unix.IPC_RMID, nil) }
