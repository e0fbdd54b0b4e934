//go:build !linux

package stack

import (
	"errors"
	"syscall"
	"time"
)

// No server is started here (postgresArtifact refuses), so what follows only has to compile.

func guardedAttributes(who *syscall.Credential, _ syscall.Signal) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Credential: who}
}

func adoptOrphans() error { return errors.ErrUnsupported }

func killChildren(time.Duration) {}

func descendants(int) []int { return nil }

func startTime(int) uint64 { return 0 }

func parentIsGoRun() bool { return false }

func ephemeralPorts() (first int, ok bool) { return 0, false }

func syncFilesystem(string) error { return nil }

func removeSharedMemory(int) {}
