// Package await polls until something is so, and says what was missing when it is not so
// in time. It is for the workshop's programs; tests have testenv.Eventually.
//
// # What is guaranteed
//
//   - The end of the caller's context is returned as its cause, at once.
//   - What is too late says what was missing, with the last error seen in time.
//
// # What is not guaranteed
//
//   - That something stays so.
package await
