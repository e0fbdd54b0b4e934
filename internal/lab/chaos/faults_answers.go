package chaos

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/samuelhu324-dev/weft/internal/lab/await"
	"github.com/samuelhu324-dev/weft/internal/testenv/proxy"
)

// falsify makes all taps answer falsely for a while. A fault that met no request is
// skipped.
func (r *run) falsify(ctx context.Context, _ *member, i *injection) (err error) {
	f := falsehood(i.Step)
	f.Seed = r.opts.Seed + uint64(i.Step.N)
	before := r.injectedBy(f.Kind)
	defer func() {
		for _, m := range r.members {
			err = errors.Join(err, m.Heal())
		}
	}()
	for _, m := range r.members {
		if err := m.Tap.Inject(f); err != nil {
			return err
		}
	}
	if err := await.Sleep(ctx, i.Step.Hold); err != nil {
		return err
	}
	hits := r.injectedBy(f.Kind) - before
	i.Note = fmt.Sprintf(", %s × %d", f.Kind, hits)
	if hits == 0 {
		return errSkip("no request came that it could have met")
	}
	return nil
}

func (r *run) injectedBy(k proxy.Kind) (n int) {
	for _, m := range r.members {
		n += m.Tap.Injected()[k]
	}
	return n
}

// falsehood is what a step asks of the taps.
func falsehood(s Step) proxy.Fault {
	f := proxy.Fault{Every: s.Every}
	switch s.Kind {
	case Throttle429:
		switch s.Variant {
		case 0:
			f.Kind = proxy.TooMany
		case 1:
			f.Kind, f.RetryAfter = proxy.TooMany, time.Second
		default:
			f.Kind, f.Items = proxy.TooManyItems, 4
		}
	case TooLarge413:
		f.Kind, f.Bytes = proxy.TooLarge, s.Bytes
	case TruncatedBulk:
		f.Kind = proxy.Truncated
	case GarbledBulk:
		f.Kind = []proxy.Kind{proxy.Garbled, proxy.MissingItems, proxy.SwappedIDs}[s.Variant]
	default:
		f.Kind = []proxy.Kind{proxy.DiskFull, proxy.DiskFullItems}[s.Variant]
	}
	return f
}
