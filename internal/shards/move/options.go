package move

import (
	"errors"
	"fmt"
	"time"

	"github.com/samuelhu324-dev/weft/migrations"
)

// Options say which shard goes where.
type Options struct {
	Shard  int
	Schema string // of the shard, on both servers
	Dealt  string // schema of the tables that deal out, on both servers
	Group  string // that leads it
	Env    string // that both databases must be of; empty for any
	From   Place
	To     Place
	Wait   time.Duration // longest wait for a lock, a hand-over included
	By     string        // who moves it, for the audit
	Why    string

	Progress func(Progress) // may be nil; called by one goroutine at a time

	stalled time.Duration // how long nothing may come through; 0 for two minutes
	answer  time.Duration // how long a server may take for a statement that works in no time; 0 for 15 s
	silence time.Duration // how long a server waits for a word of the command; 0 for 30 s
}

// Place is one of the two databases.
type Place struct {
	URL   string                // with a search_path of the shard's schema
	Spec  migrations.ShardsSpec // of all shards there; Away of each as it is to be where they are made
	Dealt string                // address with a search_path of the schema whose tables deal out
}

// Progress is how far the copy has come.
type Progress struct {
	What        string // what is done now
	Bytes, Of   int64  // copied, and about how many there are; 0 and 0 for other steps
	Table, Last int    // which of how many tables
}

// Plan is what was found, and what is to be done.
type Plan struct {
	From, To   Server
	Tables     []Table
	Structure  bool // the target needs the schemas and tables first
	Again      bool // the target has a copy that the source has not let go of
	Open       bool // the source has let go: nothing is copied, the target is opened
	Done       bool // the shard is at home there already
	Since      time.Time
	move       string // the id of an earlier try
	sourceAway *migrations.Away
}

// Server is a database as it was found.
type Server struct {
	Address string // HOST:PORT/DATABASE
	Version string // of PostgreSQL
	major   int
	started time.Time // of the server
	oid     uint32    // of the database
}

func (s Server) same(other Server) bool { return s.started.Equal(other.started) && s.oid == other.oid }

// Table is one whose rows move.
type Table struct {
	Name  string
	Rows  int64 // about, until they are copied
	Bytes int64 // with indexes

	columns string // as a list in SQL
	types   string // to compare
	parts   bool   // it is partitioned
}

// Result is what was done.
type Result struct {
	Tables []Table       // with the rows that were copied
	Waited time.Duration // that writes of the shard have waited
	Copied time.Duration // of that, to copy and compare the rows
	Bytes  int64         // that went through
	Epoch  int64         // after which the epochs of the target go on; 0 when the target was only opened
}

// Rows returns the sum of the rows.
func (r Result) Rows() (n int64) {
	for _, t := range r.Tables {
		n += t.Rows
	}
	return n
}

// LockError says that a lock could not be had in the time given, and who has it.
type LockError struct {
	What   string
	Waited time.Duration
	Holder migrations.Holder
}

// Error implements error.
func (e *LockError) Error() string {
	return e.bare().Error() + ": end that session or wait for it, and repeat the command; nothing has moved"
}

// bare says no more than what was waited for.
func (e *LockError) bare() error {
	return fmt.Errorf("waited %s for %s, held by %s", e.Waited.Round(time.Millisecond), e.What, e.Holder)
}

// ErrUnknown means that a commit was not answered: the same call again finds out what became of it.
var ErrUnknown = errors.New("a commit was not answered; repeat the command, which finds out what became of it")

// ErrClosed means that all has moved, and that the target is not open yet: the same call again opens it.
var ErrClosed = errors.New("repeat the command, which opens it")

func refuse(name, why, remedy string) error {
	return &migrations.OutboxError{Name: name, Why: why, Remedy: remedy}
}
