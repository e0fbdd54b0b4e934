package leader

import (
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// controlSocket bounds how long sent bytes may stay unacknowledged: keep-alives do not
// run while there are any.
func controlSocket(network, _ string, c syscall.RawConn) error {
	if !strings.HasPrefix(network, "tcp") {
		return nil
	}
	var failed error
	err := c.Control(func(fd uintptr) {
		failed = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(tcpUserTimeout.Milliseconds()))
	})
	if err != nil {
		return err
	}
	return failed
}
