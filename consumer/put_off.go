package consumer

import (
	"time"

	"github.com/samuelhu324-dev/weft/outbox"
)

// namePutOff names the next entities with rows put off, of up to limit ids. After the last ones
// come the first again: what is in the way of a page may stay for ever.
func (r *run) namePutOff(limit int) {
	after := r.named
	r.work(func() answer {
		keys, next, err := r.p.store.PutOffEntities(r.ctx, limit, after)
		if err == nil && len(keys) == 0 && !after.IsZero() {
			keys, next, err = r.p.store.PutOffEntities(r.ctx, limit, outbox.ID{})
		}
		return func(now time.Time) error {
			if err == nil {
				r.named = next
			}
			r.s.PutOffNamed(now, keys, err)
			return r.heard("name entities that are put off", err)
		}
	})
}
