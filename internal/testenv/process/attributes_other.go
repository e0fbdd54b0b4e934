//go:build !linux

package process

import "syscall"

// Attributes returns those of a child that runs as who: a process group of its own, or without a death
// signal a session. The kernel sends no such signal here.
func Attributes(who *syscall.Credential, deathSignal syscall.Signal) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setsid: deathSignal == 0, Setpgid: deathSignal != 0, Credential: who}
}

func ephemeralPorts() (first int, ok bool) { return 0, false }
