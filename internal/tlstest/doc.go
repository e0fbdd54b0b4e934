// Package tlstest tests weft against servers that ask for TLS, certificates, passwords and
// tokens, as an operator would run it: the binary, as a role with the least rights, with
// its secrets in files. It has no code of its own.
package tlstest
