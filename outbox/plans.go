package outbox

import (
	"context"
	"errors"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Plans returns how the server would run the statements that look for events, by the names of
// their files, under the settings of an instance's sessions. Nothing is run.
func (s *Store) Plans(ctx context.Context) (map[string][]string, error) {
	const what = "plans"
	ctx, cancel := s.deadline(ctx)
	defer cancel()
	tx, err := s.db.Begin(ctx)
	if err != nil {
		return nil, wrapped(what, s.cfg.Table, err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
	for name, value := range SessionParams() {
		if _, err := tx.Exec(ctx, "select set_config($1, $2, true)", name, value); err != nil {
			return nil, wrapped(what, s.cfg.Table, err)
		}
	}
	head := s.Shape().head()
	out := map[string][]string{}
	var errs []error
	for name, args := range map[string][]any{
		"list":        {256, head.Version, &head.ID, 100, 3, rawUUIDs([]uuid.UUID{uuid.New()})},
		"list_newest": {256},
		"oldest":      nil,
		"waiting":     {10},
	} {
		rows, err := tx.Query(ctx, "explain "+s.sql(name), args...)
		if err == nil {
			out[name], err = pgx.CollectRows(rows, pgx.RowTo[string])
		}
		errs = append(errs, err)
	}
	return out, wrapped(what, s.cfg.Table, errors.Join(errs...))
}
