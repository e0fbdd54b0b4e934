//go:build !linux

package leader

import "syscall"

// controlSocket has nothing to set: TCP_USER_TIMEOUT is Linux only. Deadlines of calls
// bound a silent network elsewhere.
func controlSocket(string, string, syscall.RawConn) error { return nil }
