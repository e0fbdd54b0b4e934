package proxy

import (
	"bytes"
	"context"
	"math/rand/v2"
	"net"
	"sync"
	"time"
)

// carry is a connection from its begin to its end. Once one direction has ended, so does the other.
func (l *Link) carry(ctx context.Context, client net.Conn, upstream string) {
	defer client.Close()
	server, err := new(net.Dialer).DialContext(ctx, "tcp", upstream)
	if err != nil {
		return
	}
	defer context.AfterFunc(ctx, func() { _, _ = client.Close(), server.Close() })()
	var both sync.WaitGroup
	both.Go(func() { l.pump(ctx, server, client, true) })
	both.Go(func() { l.pump(ctx, client, server, false) })
	both.Wait()
}

// chunk is what was read at once, and when it may be passed on.
type chunk struct {
	data []byte
	due  time.Time
}

// pump passes on what src sends, as the fault says, and ends dst when src has ended, or ctx. It takes
// what comes however much is held, so that the end is seen.
func (l *Link) pump(ctx context.Context, dst, src net.Conn, up bool) {
	defer dst.Close()
	in, done := make(chan chunk), make(chan struct{})
	defer close(done)
	l.serving.Go(func() { read(src, in, done) })
	var queue []chunk
	var passed int64 // bytes in this round
	for round := 0; ctx.Err() == nil; {
		what, changed := l.now()
		if round != what.round {
			round, passed = what.round, 0
		}
		var due <-chan time.Time
		switch {
		case what.hold:
		case len(queue) == 0 && in == nil:
			return
		case len(queue) == 0:
		case what.delay > 0 && time.Until(queue[0].due) > 0:
			due = time.After(time.Until(queue[0].due))
		default:
			data := queue[0].data
			if up && what.reset {
				data = data[:min(int64(len(data)), what.limit-passed)]
			}
			if _, err := dst.Write(data); err != nil || len(data) == 0 {
				return
			}
			passed += int64(len(data))
			if queue[0].data = queue[0].data[len(data):]; len(queue[0].data) == 0 {
				queue = queue[1:]
			}
			continue
		}
		select {
		case <-changed:
		case <-due:
		case c, more := <-in:
			if !more {
				in = nil
				continue
			}
			c.due = c.due.Add(what.delay)
			if what.jitter > 0 {
				c.due = c.due.Add(rand.N(2*what.jitter) - what.jitter)
			}
			if n := len(queue); n > 0 && c.due.Before(queue[n-1].due) {
				c.due = queue[n-1].due // no byte overtakes another
			}
			queue = append(queue, c)
		}
	}
}

// read passes on what src sends, and when, until its end, or until done.
func read(src net.Conn, into chan<- chunk, done <-chan struct{}) {
	defer close(into)
	for buffer := make([]byte, 32<<10); ; {
		n, err := src.Read(buffer)
		if n > 0 {
			select {
			case into <- chunk{bytes.Clone(buffer[:n]), time.Now()}:
			case <-done:
				return
			}
		}
		if err != nil {
			return
		}
	}
}
