package outbox

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// DB is what a Store needs of a connection pool; *pgxpool.Pool has it.
type DB interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
}

// StoreConfig says whose rows a Store works on.
type StoreConfig struct {
	Table      string        // outbox table, unqualified; found by search_path
	Projection string        // value of the projection column of audit rows
	Group      string        // leader group whose epoch fences the writes
	Owner      string        // written to owner on claim; at most 120 characters
	Lease      time.Duration // how long a claim lasts unless renewed; > 0
	Timeout    time.Duration // deadline of one call; 0 means 10 s
}

// Store holds the statements on one outbox table. It is safe for concurrent use.
type Store struct {
	db  DB
	cfg StoreConfig
	sql statements

	born         time.Time    // origin of carefulUntil; carries the monotonic clock
	carefulUntil atomic.Int64 // nanoseconds after born
}

// statements are the texts with the table's name filled in, so that each call
// sends the same string and meets the same prepared statement.
type statements struct {
	claimReady, claimListed                                                 claimTexts
	list, peek, glance                                                      string
	settleDone, settleOver, settleRest, putOff, renew                       string
	reclaim, waiting, wake, counts, oldest, last, progress, orphans, occupy string
	freeOrphans, claimDue                                                   string
}

var tableName = regexp.MustCompile(`^[a-z_][a-z0-9_]{0,62}$`)

// NewStore returns the store of one outbox table, or all that is wrong with cfg.
func NewStore(db DB, cfg StoreConfig) (*Store, error) {
	if cfg.Timeout == 0 {
		cfg.Timeout = 10 * time.Second
	}
	var errs []error
	if !tableName.MatchString(cfg.Table) {
		errs = append(errs, fmt.Errorf("table %q: want a plain lower-case name", cfg.Table))
	}
	if cfg.Group == "" {
		errs = append(errs, errors.New("group is empty"))
	}
	if cfg.Owner == "" || len([]rune(cfg.Owner)) > 120 {
		errs = append(errs, fmt.Errorf("owner %q: want 1 to 120 characters", cfg.Owner))
	}
	if cfg.Lease <= 0 {
		errs = append(errs, fmt.Errorf("lease %v: want more than 0", cfg.Lease))
	}
	if len(errs) > 0 {
		return nil, fmt.Errorf("outbox store: %w", errors.Join(errs...))
	}
	fill := strings.NewReplacer("{table}", cfg.Table, "{fence}", fence, "{held}", held).Replace
	filled := func(t claimTexts) claimTexts { return claimTexts{bold: fill(t.bold), careful: fill(t.careful)} }
	return &Store{db: db, cfg: cfg, born: time.Now(), sql: statements{
		claimReady:  filled(newClaimTexts(readyCandidates)),
		claimDue:    fill(newClaimTexts(dueCandidates).careful),
		claimListed: filled(newClaimTexts(listedCandidates)),
		list:        fill(list),
		peek:        fill(peek),
		settleDone:  fill(settleDone),
		settleOver:  fill(settleOver),
		settleRest:  fill(settleRest),
		putOff:      fill(putOff),
		renew:       fill(renew),
		reclaim:     fill(reclaim),
		waiting:     fill(waiting),
		wake:        fill(wake),
		counts:      fill(counts),
		glance:      fill(glance),
		oldest:      fill(oldest),
		last:        fill(last),
		progress:    fill(progress),
		orphans:     fill(orphans),
		freeOrphans: fill(freeOrphans),
		occupy:      fill(occupy),
	}}, nil
}

// Table returns the name of the outbox table.
func (s *Store) Table() string { return s.cfg.Table }

// Lease returns how long a claim lasts.
func (s *Store) Lease() time.Duration { return s.cfg.Lease }

// SessionParams are settings for the sessions that a Store works on. The planner takes
// its statistics when it pleases: when nothing was pending then, it believes that any
// index on status leads to next to nothing, and would read all pending rows and sort
// them for each claim. The indexes made for the claims need no sort. A statement
// that has waited for a lock must see what the holder has done. And no write waits for
// the disk: what a crash of the server takes back, a claim or a settle, is claimed and
// projected again. (The epoch is written on the leader's own session, which waits.)
func SessionParams() map[string]string {
	return map[string]string{
		"enable_sort": "off", "enable_incremental_sort": "off",
		"default_transaction_isolation": "read committed",
		"synchronous_commit":            "off",
	}
}

// fence takes a key-share lock on the leader's row of an epoch. It conflicts with
// the bump to the next epoch, which changes a column of a unique key, and not with
// the heartbeat, which does not: a statement under an old epoch either commits
// before the bump or finds no row.
const fence = `
  select from weft_leader
  where group_name = $1 and epoch = $2
  for key share`

func (s *Store) deadline(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, s.cfg.Timeout)
}
