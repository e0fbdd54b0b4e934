package stacktest

import (
	"fmt"
	"os"

	"github.com/samuelhu324-dev/weft/internal/testenv/stack"
)

const asGuardian = "WEFT_TEST_AS_GUARDIAN"

// Guard guards and ends the process if it was started to do that, and returns otherwise.
func Guard() {
	if os.Getenv(asGuardian) == "" {
		return
	}
	if err := stack.Guard(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// Guardian returns the command that makes this test binary a guardian.
func Guardian() ([]string, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("guardian of the tests' servers: %w", err)
	}
	return []string{"/usr/bin/env", asGuardian + "=1", self}, nil
}
