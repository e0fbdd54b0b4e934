package main

import (
	"errors"
	"os"
	"testing"

	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/internal/testenv/stack"
)

// asProgram makes the test binary weftlab.
const asProgram = "WEFTLAB_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	stack.GuardIfAsked()
	if os.Getenv(asProgram) != "" {
		os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
	}
	testenv.Main(m)
}

func TestExplain(t *testing.T) {
	t.Parallel()

	cases := map[string]struct {
		err     error
		code    int
		message string
	}{
		"None":        {nil, 0, ""},
		"Command":     {&stack.ExitError{Code: 7}, 7, ""},
		"NotFound":    {&stack.ExitError{Code: 127, Err: errors.New("command: no such file")}, 127, "command: no such file"},
		"AndClose":    {errors.Join(&stack.ExitError{Code: 7}, errors.New("guardian: killed")), 7, ""},
		"Usage":       {usageError(errors.New("bad flag")), exitUsage, "bad flag (see --help)"},
		"Unknown":     {errors.New(`unknown command "x" for "weftlab"`), exitUsage, `unknown command "x" for "weftlab"`},
		"Other":       {errors.New("state: x"), exitBad, "state: x"},
		"CheckFailed": {&exitError{code: exitBad}, exitBad, ""},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			code, message := explain(c.err)
			if code != c.code || message != c.message {
				t.Errorf("explain: got %d %q, want %d %q", code, message, c.code, c.message)
			}
		})
	}
}
