// Command vulnerabilities compares every Go module of a tree with the database of known
// vulnerabilities, as govulncheck reads it:
//
//	go -C tools/supply tool vulnerabilities [-db URL] [TREE]
//
// A module fails for each advisory against a package that it builds, its tests, its tools and
// what is behind a build tag of .golangci.yaml included, unless tools/advisories.txt gives a reason. The database is -db, else GOVULNDB,
// else that of the Go project; where the network has none, unpack a copy and name it as
// file:///DIRECTORY.
//
// It exits with 0 if no advisory is open, 1 if one is, 2 if a module could not be scanned,
// and 69 if the database is unavailable: nothing was checked then.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"time"
)

const (
	exitOpen        = 1
	exitError       = 2
	exitUnavailable = 69

	timeLimit = 20 * time.Minute
	// An older database misses what was found since.
	oldDatabase = 30 * 24 * time.Hour
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	code := run(ctx, os.Args[1:], os.Stdout)
	stop()
	os.Exit(code)
}

func run(ctx context.Context, args []string, out io.Writer) int {
	ctx, cancel := context.WithTimeout(ctx, timeLimit)
	defer cancel()
	db := os.Getenv("GOVULNDB")
	if db == "" {
		db = "https://vuln.go.dev"
	}
	flags := flag.NewFlagSet("vulnerabilities", flag.ContinueOnError)
	flags.StringVar(&db, "db", db, "`URL` of the database, https or file")
	if err := flags.Parse(args); err != nil {
		return exitError
	}
	tree := "../.."
	if flags.NArg() > 0 {
		tree = flags.Arg(0)
	}

	from, err := modified(ctx, db)
	if err != nil {
		fmt.Fprintf(out, "vulnerabilities: unavailable, nothing was checked: database %s: %v\n", db, err)
		return exitUnavailable
	}
	fmt.Fprintf(out, "vulnerabilities: database %s of %s\n", db, from.Format(time.DateOnly))
	if age := time.Since(from); age > oldDatabase {
		fmt.Fprintf(out, "vulnerabilities: the database is %d days old; newer advisories are not in it\n", int(age.Hours()/24))
	}
	open, err := check(ctx, db, tree, out)
	switch {
	case err != nil:
		fmt.Fprintf(out, "vulnerabilities: %v\n", err)
		return exitError
	case open > 0:
		fmt.Fprintf(out, "vulnerabilities: %d open; upgrade, or give a reason in %s\n", open, acceptedFile)
		return exitOpen
	}
	return 0
}

// check scans each module of the tree and returns how many advisories are open. A module
// that cannot be scanned does not keep the others from it.
func check(ctx context.Context, db, tree string, out io.Writer) (open int, err error) {
	dirs, err := modules(tree)
	if err != nil {
		return 0, fmt.Errorf("modules of %s: %w", tree, err)
	}
	if len(dirs) == 0 {
		return 0, fmt.Errorf("modules of %s: none found", tree)
	}
	reasons, err := readAccepted(filepath.Join(tree, acceptedFile))
	if err != nil {
		return 0, fmt.Errorf("accepted advisories: %w", err)
	}
	tags, err := buildTags(tree)
	if err != nil {
		return 0, fmt.Errorf("build tags: %w", err)
	}
	var failed []error
	for _, dir := range dirs {
		found, err := scanModule(ctx, db, filepath.Join(tree, dir), tags)
		if err != nil {
			failed = append(failed, fmt.Errorf("scan of %s: %w", dir, err))
			continue
		}
		for _, f := range found {
			reason, accepted := reasons.of(f.Advisory, dir)
			if !accepted {
				open++
				reason = f.Summary
			}
			state := map[bool]string{true: "accepted", false: "open"}[accepted]
			fmt.Fprintf(out, "%-16s %-8s %s %s: %s\n", dir, state, f.Advisory, f.where(), reason)
		}
		if len(found) == 0 {
			fmt.Fprintf(out, "%-16s none\n", dir)
		}
	}
	for _, entry := range reasons.unused() {
		fmt.Fprintf(out, "%-16s unused   %s: no scan found it; remove it from %s\n", entry.Dir, entry.Advisory, acceptedFile)
	}
	return open, errors.Join(failed...)
}
