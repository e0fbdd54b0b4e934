//go:build !linux

package rig

import "syscall"

// childAttributes gives a child a process group of its own.
func childAttributes(outlives bool) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setsid: outlives, Setpgid: !outlives}
}
