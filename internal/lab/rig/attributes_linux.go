package rig

import "syscall"

// childAttributes gives a child a process group of its own, so that the terminal's
// Ctrl-C is its parent's to handle. Unless it may outlive the parent, the kernel kills it
// when the parent dies.
func childAttributes(outlives bool) *syscall.SysProcAttr {
	if outlives {
		return &syscall.SysProcAttr{Setsid: true}
	}
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
