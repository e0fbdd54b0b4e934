package outbox

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Plans returns how the server would run the statements that look for events, by the names of
// their files, under the settings of an instance's sessions. Nothing is run.
func (s *Store) Plans(ctx context.Context) (map[string][]string, error) {
	var q pgx.Batch
	for name, value := range SessionParams() {
		q.Queue("select set_config($1, $2, true)", name, value)
	}
	head := s.Shape().head()
	out := map[string][]string{}
	for name, args := range map[string][]any{
		"list":        {256, head.Version, &head.ID, 100, [][16]byte{uuid.New()}},
		"list_newest": {256},
		"oldest":      nil,
		"waiting":     {10},
	} {
		q.Queue("explain "+s.sql(name), args...).Query(func(rows pgx.Rows) (err error) {
			out[name], err = pgx.CollectRows(rows, pgx.RowTo[string])
			return err
		})
	}
	return out, s.opened().batch(ctx, "plans", &q)
}
