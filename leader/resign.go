package leader

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/jackc/pgx/v5"
)

// Resignation asks the leader of one term to hand over. A request for a term that is
// over never reaches a later one.
type Resignation struct {
	Epoch   int64
	By      string    // who asks, 1 to 120 characters
	Why     string    // 1 to 1,000 characters
	AskedAt time.Time // database clock; set by Resign
}

// maxWhy is how much reason is kept, in characters.
const maxWhy = 1000

// Validate says what is wrong with By or Why.
func (r Resignation) Validate() error {
	if err := checkName(r.By); err != nil {
		return fmt.Errorf("who asks: %w", err)
	}
	switch {
	case strings.TrimSpace(r.By) == "":
		return errors.New("who asks: must not be empty")
	case strings.TrimSpace(r.Why) == "":
		return errors.New("the reason: must not be empty")
	case len([]rune(r.Why)) > maxWhy:
		return fmt.Errorf("the reason: must not be longer than %d characters", maxWhy)
	case strings.ContainsFunc(r.Why, unicode.IsControl):
		return errors.New("the reason: must not contain control characters")
	}
	return nil
}

// resignSQL asks the leader $2 of group $1 to hand over, for $3 and because of $4, and
// wakes it on channel $5. All of it happens, or none; a later request for the same term
// replaces an earlier one.
const resignSQL = `
with asked as (
    update weft_leader
       set resign_epoch = epoch, resign_by = $3, resign_why = $4, resign_asked_at = clock_timestamp()
     where group_name = $1 and epoch = $2 and released_at is null
    returning instance, resign_asked_at
), audited as (
    insert into weft_audit (actor, action, why, from_owner, from_epoch, count)
    select $3, 'resign_requested', $4, instance, $2, 1 from asked
)
select resign_asked_at, pg_notify($5, $2::bigint::text) from asked`

// Resign records r and wakes the leader of its term; it does not wait for the hand-over.
// The error wraps [ErrNoTerm] when that term is over, and [ErrNotMigrated] on a schema
// that cannot carry the request. The call takes at most 5 s.
func Resign(ctx context.Context, db DB, group string, r Resignation) (Resignation, error) {
	if err := r.Validate(); err != nil {
		return r, fmt.Errorf("leader: resign: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	err := db.QueryRow(ctx, resignSQL, pgx.QueryExecModeExec, group, r.Epoch, r.By, r.Why, channel(group)).Scan(&r.AskedAt, nil)
	if errors.Is(err, pgx.ErrNoRows) {
		return r, fmt.Errorf("%w: epoch %d of group %s", ErrNoTerm, r.Epoch, group)
	}
	if err != nil {
		return r, fmt.Errorf("ask to resign: %w", diagnose(err))
	}
	return r, nil
}

// channel is where the leader of group is woken: an identifier, whatever the group's name.
func channel(group string) string {
	return "weft_resign_" + strconv.FormatUint(uint64(Key(group)), 16)
}
