package testenv

import "os"

const longEnv = "WEFT_TEST_LONG"

// Volume returns ordinary, or long where WEFT_TEST_LONG is set, as `make test-long` does
// every night: the same assertions hold for both.
func Volume(ordinary, long int) int {
	if os.Getenv(longEnv) != "" {
		return long
	}
	return ordinary
}
