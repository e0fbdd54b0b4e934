//go:build !linux

package process

import "syscall"

func attributes(who *syscall.Credential, _ syscall.Signal) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Credential: who}
}

func ephemeralPorts() (first int, ok bool) { return 0, false }
