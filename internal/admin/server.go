package admin

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"
)

// closeGrace bounds how long requests in flight hold up a stop.
const closeGrace = 2 * time.Second

// Options are the handlers and addresses of a server.
type Options struct {
	Host        string // default 0.0.0.0: all interfaces
	MetricsPort int    // metrics and health; 0 picks a free one
	// MetricsPortFixed makes a taken MetricsPort an error; otherwise a free port is
	// taken instead, because a second instance on the host is no mistake.
	MetricsPortFixed bool
	HealthPort       int // health alone; 0, or the metrics port, means none

	Health   *Health
	Gatherer prometheus.Gatherer
	Log      *zap.Logger
}

// Server holds the listeners. Call Run once, or Close.
type Server struct {
	log   *zap.Logger
	parts []part
}

type part struct {
	ln  net.Listener
	srv *http.Server
}

// Listen binds the ports of o and serves nothing yet. A port that cannot be bound
// is an error that says what to do.
func Listen(ctx context.Context, o Options) (*Server, error) {
	if o.Host == "" {
		o.Host = "0.0.0.0"
	}
	s := &Server{log: o.Log.Named("admin")}
	ln, err := bind(ctx, o.Host, o.MetricsPort)
	if errors.Is(err, syscall.EADDRINUSE) && !o.MetricsPortFixed {
		if ln, err = bind(ctx, o.Host, 0); err == nil {
			s.log.Warn("default port is taken; serving on a free one", zap.String("event", "http.other_port"),
				zap.Int("port", o.MetricsPort), zap.String("address", address(ln, "127.0.0.1")))
		}
	}
	if err != nil {
		return nil, bindError("metrics", "OUTBOX_METRICS_PORT", o.Host, o.MetricsPort, err)
	}
	s.add(ln, Handler(o))
	if o.HealthPort != 0 && o.HealthPort != o.MetricsPort {
		ln, err := bind(ctx, o.Host, o.HealthPort)
		if err != nil {
			s.Close()
			return nil, bindError("health", "OUTBOX_HTTP_PORT", o.Host, o.HealthPort, err)
		}
		s.add(ln, HealthHandler(o.Health))
	}
	return s, nil
}

func bind(ctx context.Context, host string, port int) (net.Listener, error) {
	var lc net.ListenConfig
	return lc.Listen(ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(port)))
}

func bindError(what, env, host string, port int, err error) error {
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return fmt.Errorf("%s port %d is taken: `ss -ltnp 'sport = :%d'` shows by whom; set %s to another one (%w)",
			what, port, port, env, syscall.EADDRINUSE)
	case errors.Is(err, syscall.EACCES):
		return fmt.Errorf("%s port %d is reserved for the superuser: set %s to one above 1023 (%w)", what, port, env, syscall.EACCES)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return fmt.Errorf("%s address %s is not one of this host: correct WEFT_HTTP_HOST (%w)", what, host, syscall.EADDRNOTAVAIL)
	default:
		return fmt.Errorf("listen for %s: %w", what, err)
	}
}

func (s *Server) add(ln net.Listener, h http.Handler) {
	s.parts = append(s.parts, part{ln: ln, srv: &http.Server{
		Handler:           h,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      30 * time.Second,
		IdleTimeout:       60 * time.Second,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          zap.NewStdLog(s.log),
	}})
}

// Addr returns host:port of the metrics listener, as this host reaches it.
func (s *Server) Addr() string { return address(s.parts[0].ln, "127.0.0.1") }

// AddrAt returns host:port of the metrics listener; where that listens on all interfaces, host
// is the one that is given.
func (s *Server) AddrAt(host string) string { return address(s.parts[0].ln, host) }

// address returns host:port of a listener, with host for all interfaces.
func address(ln net.Listener, host string) string {
	a, ok := ln.Addr().(*net.TCPAddr)
	if !ok || !a.IP.IsUnspecified() {
		return ln.Addr().String()
	}
	return net.JoinHostPort(host, strconv.Itoa(a.Port))
}

// reach says who can reach a listener.
func reach(ln net.Listener) string {
	if a, ok := ln.Addr().(*net.TCPAddr); ok && a.IP.IsLoopback() {
		return "this host alone"
	}
	return "other hosts, too; WEFT_HTTP_HOST=127.0.0.1 serves this host alone"
}

// HealthAddr returns host:port of the listener for health alone, or "" when there
// is none.
func (s *Server) HealthAddr() string {
	if len(s.parts) < 2 {
		return ""
	}
	return address(s.parts[1].ln, "127.0.0.1")
}

// Run serves until ctx ends, then lets requests in flight finish for a short while,
// closes the listeners and returns nil. Any other error means that serving broke.
func (s *Server) Run(ctx context.Context) error {
	for _, p := range s.parts {
		s.log.Info("serving", zap.String("event", "http.serving"), zap.String("address", address(p.ln, "127.0.0.1")), zap.String("reach", reach(p.ln)))
	}
	g, gctx := errgroup.WithContext(ctx)
	for _, p := range s.parts {
		g.Go(func() error {
			if err := p.srv.Serve(p.ln); !errors.Is(err, http.ErrServerClosed) {
				return fmt.Errorf("serve %s: %w", p.ln.Addr(), err)
			}
			return nil
		})
		g.Go(func() error {
			<-gctx.Done()
			stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeGrace)
			defer cancel()
			if p.srv.Shutdown(stop) != nil {
				_ = p.srv.Close()
			}
			return nil
		})
	}
	return g.Wait()
}

// Close releases the listeners of a Server that was not run.
func (s *Server) Close() {
	for _, p := range s.parts {
		_ = p.ln.Close()
	}
}
