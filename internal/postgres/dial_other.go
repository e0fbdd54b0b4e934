//go:build !linux

package postgres

import "syscall"

// Keep-alive alone must do where there is no TCP_USER_TIMEOUT.
func setUserTimeout(_, _ string, _ syscall.RawConn) error { return nil }
