package process

import (
	"os"
	"strconv"
	"strings"
	"syscall"
)

func attributes(who *syscall.Credential, deathSignal syscall.Signal) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Credential: who, Pdeathsig: deathSignal}
}

// ephemeralPorts is the first port that the kernel may give to outgoing connections.
func ephemeralPorts() (first int, ok bool) {
	content, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
	if err != nil {
		return 0, false
	}
	fields := strings.Fields(string(content))
	if len(fields) == 0 {
		return 0, false
	}
	first, err = strconv.Atoi(fields[0])
	return first, err == nil
}
