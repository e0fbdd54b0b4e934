package demo

import "syscall"

// childAttributes gives a child a process group of its own, so that the terminal's
// Ctrl-C is the demo's to handle. Unless it may outlive the demo, the kernel kills it
// when the demo dies.
func childAttributes(outlives bool) *syscall.SysProcAttr {
	if outlives {
		return &syscall.SysProcAttr{Setsid: true}
	}
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
