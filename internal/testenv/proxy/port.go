package proxy

import (
	"fmt"
	"net"
	"syscall"
)

// keepPort takes a port of loopback that nobody listens on: connections to it are refused, and the
// kernel gives it to nobody who asks for any port. release gives it back.
func keepPort(address string) (release func(), err error) {
	at, err := net.ResolveTCPAddr("tcp4", address)
	if err != nil {
		return nil, err
	}
	syscall.ForkLock.RLock() // until the socket is closed to programs that are started
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err == nil {
		syscall.CloseOnExec(fd)
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		return nil, fmt.Errorf("keep port %d: %w", at.Port, err)
	}
	release = func() { _ = syscall.Close(fd) }
	// Connections that ended lately are in the way of a bind without reuse, and with it the kernel
	// would give the port to others.
	for _, step := range []func() error{
		func() error { return syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1) },
		func() error {
			return syscall.Bind(fd, &syscall.SockaddrInet4{Port: at.Port, Addr: [4]byte(at.IP.To4())})
		},
		func() error { return syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 0) },
	} {
		if err := step(); err != nil {
			release()
			return nil, fmt.Errorf("keep port %d: %w", at.Port, err)
		}
	}
	return release, nil
}
