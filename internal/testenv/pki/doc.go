// Package pki makes certificates for servers and clients of tests.
//
// # What is guaranteed
//
//   - Every authority has a key of its own that is never written anywhere; two authorities
//     trust nothing of each other, whatever their names.
//   - A certificate is for the hosts and the common name that it was asked for, for a day.
//
// # What is not guaranteed
//
//   - Nothing is revoked, and there are no intermediate authorities.
package pki
