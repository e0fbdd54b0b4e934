package main

import (
	"context"
	"path/filepath"
)

// site is what all peers share.
type site struct {
	dir      string // of logs and data
	source   string // of this module
	weft     string // the binary
	elastic  elastic
	version  string // of Elasticsearch
	postgres *postgres
}

func (s *site) log(name string) string { return filepath.Join(s.dir, name+".log") }

// peer carries rows of the table item into an index.
type peer interface {
	// prepare fetches and builds what the peer needs, and returns its version.
	prepare(ctx context.Context) (version string, err error)
	settings() []string
	about() about
	// fill writes rows 1 to n, and what the peer needs to carry them, before it starts.
	fill(ctx context.Context, db *database, n int) error
	// start starts an instance.
	start(ctx context.Context, db *database, name string) (*program, error)
	// settled returns whether nothing is left to do.
	settled(ctx context.Context, db *database) (bool, error)
	// ready returns whether the instances that were started, the second one included, all work.
	ready(ctx context.Context, db *database, instances int) (bool, error)
	// active returns which of the instances is to be struck.
	active(ctx context.Context, db *database) (string, error)
	// write writes rows from the id first on, one each 50 ms, until ctx ends, and calls committed after each.
	write(ctx context.Context, db *database, first int64, committed func(id int64)) error
}

// about is what a reader has to know about a peer.
type about struct {
	name    string
	prefix  string // of its indices
	index   string // to search in
	backlog string // what it is made of
	settled string // what that means
	standby string // empty: none, a supervisor starts it again
}

// writeBySQL writes by SQL: triggers or the log of PostgreSQL tell the peer.
func writeBySQL(ctx context.Context, db *database, first int64, committed func(id int64)) error {
	for id := first; ; id++ {
		if err := db.insert(ctx, id, id); err != nil {
			return err
		}
		committed(id)
		if err := pause(ctx, writePause); err != nil {
			return err
		}
	}
}
