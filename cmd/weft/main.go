// Command weft carries committed changes from a Postgres outbox into Elasticsearch.
package main

import (
	"context"
	"io"
	"os"
)

func main() {
	os.Exit(run(context.Background(), os.Args, os.Environ(), os.Stdin, os.Stdout, os.Stderr))
}

// run is the whole program: it returns the exit code.
func run(ctx context.Context, args, environ []string, stdin io.Reader, stdout, stderr io.Writer) int {
	a := &app{environ: environ, stdin: stdin, stdout: stdout, stderr: stderr, daemon: runDaemon, signals: notify}
	return a.execute(ctx, args[1:])
}
