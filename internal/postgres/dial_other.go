//go:build !linux

package postgres

import (
	"syscall"
	"time"
)

// Keep-alive alone must do where there is no TCP_USER_TIMEOUT.
func setUserTimeout(string, syscall.RawConn, time.Duration) error { return nil }
