package stack

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// adoptOrphans makes orphaned descendants children of this process, so that reapAll finds them.
func adoptOrphans() error {
	return unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
}

// killChildren kills every descendant and waits until none is left or the time is over.
// No exec.Cmd may be waiting at the same time.
func killChildren(bound time.Duration) {
	deadline := time.Now().Add(bound)
	for {
		for _, pid := range descendants(os.Getpid()) {
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

// descendants lists the processes under pid, parents first. Those that start meanwhile
// may be missed.
func descendants(pid int) []int {
	children := make(map[int][]int)
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, name := range stats {
		fields := procStat(name)
		if len(fields) < 2 {
			continue
		}
		child, _ := strconv.Atoi(strings.Split(name, "/")[2])
		parent, _ := strconv.Atoi(fields[1])
		children[parent] = append(children[parent], child)
	}
	var found []int
	for next := children[pid]; len(next) > 0; {
		found = append(found, next...)
		var below []int
		for _, child := range next {
			below = append(below, children[child]...)
		}
		next = below
	}
	return found
}

// procStat returns the fields of a stat file from the third (state) on; the second may
// hold spaces and brackets.
func procStat(name string) []string {
	content, err := os.ReadFile(name)
	if err != nil {
		return nil
	}
	_, rest, found := strings.Cut(string(content), ") ")
	for found && strings.Contains(rest, ") ") {
		_, rest, found = strings.Cut(rest, ") ")
	}
	return strings.Fields(rest)
}

// startTime tells a process from a later one of the same id; 0 if there is none, or
// only its body.
func startTime(pid int) uint64 {
	const state, start = 0, 19
	fields := procStat("/proc/" + strconv.Itoa(pid) + "/stat")
	if len(fields) <= start || fields[state] == "Z" || fields[state] == "X" {
		return 0
	}
	ticks, _ := strconv.ParseUint(fields[start], 10, 64)
	return ticks
}

// parentIsGoRun: `go run` dies of a SIGTERM without passing it on.
func parentIsGoRun() bool {
	name, err := os.ReadFile("/proc/" + strconv.Itoa(os.Getppid()) + "/comm")
	return err == nil && strings.TrimSpace(string(name)) == "go"
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
