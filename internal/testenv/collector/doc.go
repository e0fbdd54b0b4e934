// Package collector is a receiver of traces for tests and drills: it takes OTLP over
// gRPC and over HTTP on free loopback ports, keeps what it is sent in memory, and can
// be told to be slow or to refuse.
package collector
