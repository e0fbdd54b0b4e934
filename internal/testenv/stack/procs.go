package stack

import (
	"os"
	"syscall"
	"time"

	"github.com/prometheus/procfs"

	"github.com/samuelhu324-dev/weft/internal/testenv/process"
)

// killChildren kills every descendant and waits until none is left or the time is over.
// No exec.Cmd may be waiting at the same time.
func killChildren(bound time.Duration) {
	deadline := time.Now().Add(bound)
	for {
		for _, pid := range process.Descendants(os.Getpid()) {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		for {
			pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil)
			if err == syscall.ECHILD || time.Now().After(deadline) {
				return
			}
			if err != nil || pid <= 0 {
				break
			}
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// startTime tells a process from a later one of the same id; it is 0 when there is none,
// or only a zombie.
func startTime(pid int) uint64 {
	p, err := procfs.NewProc(pid)
	if err != nil {
		return 0
	}
	stat, err := p.Stat()
	if err != nil || stat.State == "Z" || stat.State == "X" {
		return 0
	}
	return stat.Starttime
}

// parentIsGoRun reports whether `go run` has started this process: it dies of a SIGTERM
// without passing it on.
func parentIsGoRun() bool {
	parent, err := procfs.NewProc(os.Getppid())
	if err != nil {
		return false
	}
	name, err := parent.Comm()
	return err == nil && name == "go"
}
