package elastictest

import (
	"io"
	"net"
	"net/http"
	"strconv"
)

// Status answers with code, headers (pairs of name and value) and body, and
// executes nothing.
func Status(code int, body string, headers ...string) Step {
	return func(w http.ResponseWriter, r *http.Request, _ func() []byte) {
		_, _ = io.Copy(io.Discard, r.Body)
		for i := 0; i+1 < len(headers); i += 2 {
			w.Header().Set(headers[i], headers[i+1])
		}
		w.WriteHeader(code)
		_, _ = io.WriteString(w, body)
	}
}

// Pass executes the request.
func Pass() Step {
	return func(w http.ResponseWriter, _ *http.Request, apply func() []byte) { _, _ = w.Write(apply()) }
}

// Mutate executes the request and answers with what f makes of the true answer.
func Mutate(f func([]byte) []byte) Step {
	return func(w http.ResponseWriter, _ *http.Request, apply func() []byte) { _, _ = w.Write(f(apply())) }
}

// Truncate executes the request and cuts the connection after n bytes of the answer.
func Truncate(n int) Step {
	return func(w http.ResponseWriter, _ *http.Request, apply func() []byte) {
		answer := apply()
		w.Header().Set("Content-Length", strconv.Itoa(len(answer)))
		_, _ = w.Write(answer[:min(n, len(answer))])
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}
}

// Stall takes the request and gives no answer until release is closed or the client
// has gone.
func Stall(release <-chan struct{}) Step {
	return func(_ http.ResponseWriter, r *http.Request, _ func() []byte) {
		_, _ = io.Copy(io.Discard, r.Body)
		select {
		case <-release:
		case <-r.Context().Done():
		}
		panic(http.ErrAbortHandler)
	}
}

// Reset reads up to n bytes of the body and resets the connection.
func Reset(n int64) Step {
	return func(w http.ResponseWriter, r *http.Request, _ func() []byte) {
		_, _ = io.CopyN(io.Discard, r.Body, n)
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		if tcp, ok := conn.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0)
		}
		_ = conn.Close()
	}
}
