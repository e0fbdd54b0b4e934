package demo

import (
	"context"
	"errors"

	"github.com/samuelhu324-dev/weft/internal/lab/rig"
	"github.com/samuelhu324-dev/weft/internal/testenv/stack"
)

const (
	ownIndex = "weft-demo"
	conns    = 12
)

// corner is where the demo works: its own servers, or names of its own on the user's.
type corner struct {
	*rig.Place
	base *rig.Place // the place of the user's schemas; equal to Place where both servers are ours
}

// openCorner starts the servers that the user has not named.
func openCorner(ctx context.Context, opts Options) (*corner, error) {
	base, err := rig.Open(ctx, stack.Options{Progress: opts.Progress, DatabaseURL: opts.DatabaseURL, ElasticURL: opts.ElasticURL}, conns)
	if err != nil {
		return nil, err
	}
	suffix := rig.Suffix()
	base.Index = ownIndex
	if opts.ElasticURL != "" {
		base.Index += "-" + suffix
	}
	c := &corner{Place: base, base: base}
	if opts.DatabaseURL != "" {
		// The lock of a group is one per database: the group is the demo's own, too.
		if c.Place, err = base.Corner(ctx, "weft_demo_"+suffix, base.Index, "demo-"+suffix, conns); err != nil {
			return nil, errors.Join(err, base.Close(ctx))
		}
	}
	return c, nil
}

// close stops the demo's servers and removes what it has made on the user's.
func (c *corner) close(ctx context.Context) error {
	var errs []error
	switch {
	case c.Place != c.base:
		errs = append(errs, c.Place.Close(ctx))
	case !c.base.Started.Elastic:
		errs = append(errs, c.base.DeleteIndices(context.WithoutCancel(ctx), c.base.Index))
	}
	return errors.Join(append(errs, c.base.Close(ctx))...)
}
