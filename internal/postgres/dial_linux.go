package postgres

import (
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

func setUserTimeout(network string, c syscall.RawConn, d time.Duration) error {
	if !strings.HasPrefix(network, "tcp") {
		return nil
	}
	var opt error
	if err := c.Control(func(fd uintptr) {
		opt = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(d.Milliseconds()))
	}); err != nil {
		return err
	}
	return opt
}
