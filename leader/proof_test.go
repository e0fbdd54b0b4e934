package leader

import (
	"context"
	"errors"
	"testing"
)

// pooler gives its clients backends the way a transaction pooler does: for a statement
// or a transaction, from a list of idle ones.
type pooler struct {
	idle       []uint32
	roundRobin bool
}

func (p *pooler) take() uint32 {
	b := p.idle[0]
	p.idle = p.idle[1:]
	return b
}

func (p *pooler) give(b uint32) {
	if p.roundRobin {
		p.idle = append(p.idle, b)
		return
	}
	p.idle = append([]uint32{b}, p.idle...)
}

type pooled struct {
	*pooler
	held uint32 // in a transaction
}

func (c *pooled) pid(context.Context) (uint32, error) {
	if c.held != 0 {
		return c.held, nil
	}
	if len(c.idle) == 0 {
		return 0, errors.New("query_wait_timeout")
	}
	b := c.take()
	c.give(b)
	return b, nil
}

func (c *pooled) begin(context.Context) error {
	c.held = c.take()
	return nil
}

func (c *pooled) rollback(context.Context) error {
	c.give(c.held)
	c.held = 0
	return nil
}

// direct has one backend for good, like a connection in session mode.
type direct uint32

func (d direct) pid(context.Context) (uint32, error) { return uint32(d), nil }
func (direct) begin(context.Context) error           { return nil }
func (direct) rollback(context.Context) error        { return nil }

func TestProvePooling(t *testing.T) {
	t.Parallel()
	for name, p := range map[string]*pooler{
		"OneBackend":        {idle: []uint32{1}},
		"LastInFirstOut":    {idle: []uint32{1, 2, 3}},
		"RoundRobinOfOne":   {idle: []uint32{1}, roundRobin: true},
		"RoundRobinOfTwo":   {idle: []uint32{1, 2}, roundRobin: true},
		"RoundRobinOfThree": {idle: []uint32{1, 2, 3}, roundRobin: true},
		"RoundRobinOfMany":  {idle: []uint32{1, 2, 3, 4, 5, 6, 7, 8, 9}, roundRobin: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := provePooling(t.Context(), &pooled{pooler: p}, &pooled{pooler: p})
			if !errors.Is(err, ErrPooled) {
				t.Errorf("provePooling: got %v, want ErrPooled", err)
			}
		})
	}
	t.Run("SessionMode", func(t *testing.T) {
		t.Parallel()
		if err := provePooling(t.Context(), direct(1), direct(2)); err != nil {
			t.Errorf("provePooling: got %v, want nil", err)
		}
	})
}
