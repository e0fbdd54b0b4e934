package elastic

import (
	"context"
	"net"
	"time"
)

const (
	dialTimeout = 3 * time.Second
	// redial is when a connection that does not come about is asked for anew, beside the
	// first: the kernel repeats a lost SYN after one second, three and seven, which would
	// keep a path that is open again closed for as long.
	redial = 500 * time.Millisecond
)

// dial connects within dialTimeout. The first answer counts, a refusal as well.
func dial(ctx context.Context, network, addr string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	type attempt struct {
		conn net.Conn
		err  error
	}
	answers := make(chan attempt)
	dialer := net.Dialer{KeepAlive: 15 * time.Second}
	pending := 0
	start := func() {
		pending++
		go func() {
			conn, err := dialer.DialContext(ctx, network, addr)
			answers <- attempt{conn, err}
		}()
	}
	start()
	again := time.NewTicker(redial)
	defer again.Stop()
	for {
		select {
		case <-again.C:
			start()
		case first := <-answers:
			cancel()
			for pending--; pending > 0; pending-- {
				if late := <-answers; late.conn != nil {
					_ = late.conn.Close()
				}
			}
			return first.conn, first.err
		}
	}
}
