package main

import (
	"errors"
	"strings"

	"github.com/samuelhu324-dev/weft/internal/testenv/stack"
)

// The exit codes of weftlab's own; `stack -- CMD` passes on that of CMD. Go itself
// exits 2 on a panic, so 2 has no meaning here.
const (
	exitBad         = 1
	exitUsage       = 64
	exitUnavailable = 69
	exitInterrupted = 130
	exitTerminated  = 143
)

// exitError is an error that knows its exit code. An empty message was said already.
type exitError struct {
	code    int
	message string
}

func (e *exitError) Error() string { return e.message }

func usageError(err error) error {
	return &exitError{exitUsage, err.Error() + " (see --help)"}
}

func explain(err error) (code int, message string) {
	if err == nil {
		return 0, ""
	}
	if own, ok := errors.AsType[*exitError](err); ok {
		return own.code, own.message
	}
	if command, ok := errors.AsType[*stack.ExitError](err); ok {
		if command.Err == nil {
			return command.Code, ""
		}
		return command.Code, command.Error()
	}
	// What cobra itself finds has no type.
	for _, usage := range []string{"unknown command", "if any flags in the group"} {
		if strings.HasPrefix(err.Error(), usage) {
			return exitUsage, err.Error()
		}
	}
	return exitBad, err.Error()
}
