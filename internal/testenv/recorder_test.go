package testenv

import (
	"fmt"
	"runtime"
	"testing"
)

// recorder stands in for a test that is meant to fail.
type recorder struct {
	testing.TB
	fatal string
}

func (r *recorder) Helper() {}

func (r *recorder) Fatalf(format string, args ...any) {
	r.fatal = fmt.Sprintf(format, args...)
	runtime.Goexit()
}
