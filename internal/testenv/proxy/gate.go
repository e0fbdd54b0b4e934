package proxy

import (
	"math/rand/v2"
	"time"

	"github.com/Shopify/toxiproxy/v2/stream"
	"github.com/Shopify/toxiproxy/v2/toxics"
)

const (
	gateType         = "weftlab_gate"
	upward, downward = "upstream", "downstream" // to the server, to the client

	// flushGrace is how long the rest of a connection that ended at one side may take.
	flushGrace = 5 * time.Second
)

// gate is the one toxic of a link. It stays, and applies the link's fault. Adding and
// removing toxics loses bytes or hangs where a connection is blocked; and the library's
// own timeout toxic drops what was sent and ends the connection.
type gate struct {
	link *Link
	up   bool
}

// NewState implements toxics.StatefulToxic. It is called by the loop that accepts.
func (g *gate) NewState() any {
	g.link.gates.Add(1)
	return &flow{up: g.up}
}

// Pipe implements toxics.Toxic. It takes what comes however much is held, so that the
// end of a connection is seen.
func (g *gate) Pipe(stub *toxics.ToxicStub) {
	f := stub.State.(*flow)
	for {
		what, changed := g.link.now()
		if f.over(what) {
			break
		}
		in := stub.Input
		if f.ended {
			in = nil
		}
		out, wait := f.exit(stub.Output, what)
		select {
		case <-stub.Interrupt:
			return // the state stays
		case <-changed:
		case <-wait:
		case <-f.giveUp:
			f.queue = nil
		case c := <-in:
			f.take(c, what)
		case out <- f.head(what):
			f.sent(what)
		}
	}
	stub.Close()
	if !f.ended {
		for range stub.Input { // until the connection is closed
		}
	}
	g.link.gates.Done()
}

// flow is one direction of one connection.
type flow struct {
	up     bool
	queue  []waiting
	ended  bool             // nothing more comes
	giveUp <-chan time.Time // once ended and not on hold
	round  int
	passed int64 // bytes in this round
}

type waiting struct {
	chunk *stream.StreamChunk
	due   time.Time
}

// over reports whether the flow is to be ended now.
func (f *flow) over(what fault) bool {
	if f.round != what.round {
		f.round, f.passed = what.round, 0
	}
	if f.ended && f.giveUp == nil && !what.hold {
		f.giveUp = time.After(flushGrace + what.delay + what.jitter)
	}
	switch {
	case what.cut:
		return true
	case what.hold:
		return false
	case len(f.queue) == 0:
		return f.ended
	default:
		return f.limited(what) && f.passed >= what.limit
	}
}

func (f *flow) limited(what fault) bool { return f.up && what.reset }

// take notes a chunk, or with nil the end.
func (f *flow) take(c *stream.StreamChunk, what fault) {
	if c == nil {
		f.ended = true
		return
	}
	delay := what.delay
	if what.jitter > 0 {
		delay += rand.N(2*what.jitter) - what.jitter
	}
	due := c.Timestamp.Add(delay)
	if n := len(f.queue); n > 0 && due.Before(f.queue[n-1].due) {
		due = f.queue[n-1].due
	}
	f.queue = append(f.queue, waiting{c, due})
}

// exit returns where the head of the queue can go now, or when it is worth another look.
func (f *flow) exit(out chan<- *stream.StreamChunk, what fault) (chan<- *stream.StreamChunk, <-chan time.Time) {
	if len(f.queue) == 0 || what.hold {
		return nil, nil
	}
	if left := time.Until(f.queue[0].due); left > 0 && what.delay > 0 {
		return nil, time.After(left)
	}
	return out, nil
}

// head returns the first chunk, or as much of it as may pass.
func (f *flow) head(what fault) *stream.StreamChunk {
	if len(f.queue) == 0 {
		return nil
	}
	c := f.queue[0].chunk
	if left := what.limit - f.passed; f.limited(what) && left < int64(len(c.Data)) {
		return &stream.StreamChunk{Data: c.Data[:left], Timestamp: c.Timestamp}
	}
	return c
}

// sent takes what head has returned off the queue.
func (f *flow) sent(what fault) {
	n := len(f.head(what).Data)
	f.passed += int64(n)
	c := f.queue[0].chunk
	if n < len(c.Data) {
		c.Data = c.Data[n:]
		return
	}
	f.queue[0] = waiting{}
	f.queue = f.queue[1:]
}
