package process

import (
	"syscall"

	"github.com/prometheus/procfs"
)

// Attributes give a child a process group of its own, so that the terminal's Ctrl-C is its parent's
// to handle, and with a death signal the kernel's care. Without one it gets a session.
func Attributes(who *syscall.Credential, deathSignal syscall.Signal) *syscall.SysProcAttr {
	outlives := deathSignal == 0
	return &syscall.SysProcAttr{Setsid: outlives, Setpgid: !outlives, Credential: who, Pdeathsig: deathSignal}
}

// ephemeralPorts is the first port that the kernel may give to outgoing connections.
func ephemeralPorts() (first int, ok bool) {
	proc, err := procfs.NewDefaultFS()
	if err != nil {
		return 0, false
	}
	bounds, err := proc.SysctlInts("net.ipv4.ip_local_port_range")
	if err != nil || len(bounds) == 0 {
		return 0, false
	}
	return bounds[0], true
}
