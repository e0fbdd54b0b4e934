// Package tlstest tests weft against servers that ask for TLS, certificates, passwords and
// tokens. The tests run the binary as an operator would: with a database role of the least
// rights, and with its secrets in files. The package has tests only.
package tlstest
