package postgres_test

import (
	"net"
	"testing"

	"golang.org/x/sys/unix"
)

func checkSocket(t *testing.T, conn net.Conn) {
	t.Helper()
	raw, err := conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if err := raw.Control(func(fd uintptr) {
		for name, opt := range map[string]struct{ level, opt, want int }{
			"SO_KEEPALIVE":     {unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1},
			"TCP_KEEPIDLE":     {unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, 5},
			"TCP_KEEPINTVL":    {unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, 2},
			"TCP_KEEPCNT":      {unix.IPPROTO_TCP, unix.TCP_KEEPCNT, 3},
			"TCP_USER_TIMEOUT": {unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, 10000},
		} {
			got, err := unix.GetsockoptInt(int(fd), opt.level, opt.opt)
			if err != nil || got != opt.want {
				t.Errorf("%s: got %d (%v), want %d", name, got, err, opt.want)
			}
		}
	}); err != nil {
		t.Fatal(err)
	}
}
