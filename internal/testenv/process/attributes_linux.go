package process

import (
	"syscall"

	"github.com/prometheus/procfs"
)

// Attributes returns those of a child that runs as who. With a death signal, which the kernel sends it
// when its parent dies, it gets a process group of its own, so that the terminal's Ctrl-C goes to the
// parent alone. Without one (0) it gets a session of its own, and outlives its parent.
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
