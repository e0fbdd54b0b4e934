package desk

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"html/template"
	"log/slog" //nolint:depguard // the exporter toolkit takes no other logger
	"net"
	"net/http"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/exporter-toolkit/web"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/samuelhu324-dev/weft/internal/admin"
	"github.com/samuelhu324-dev/weft/internal/records"
	"github.com/samuelhu324-dev/weft/outbox"
)

// closeGrace bounds how long answers under way hold up a stop.
const closeGrace = 300 * time.Millisecond

// Options are what the desk shows, where, and to whom.
type Options struct {
	Listen string // host:port; port 0 picks a free one
	// Fixed makes a taken port an error; otherwise a free one is taken instead.
	Fixed     bool
	Hosts     string // further names of the page, lower case, separated by commas
	WebConfig string // file with TLS and users, as the exporter toolkit reads it; empty for none
	// Actions lets the Operators, names separated by commas, change things with ActDB.
	Actions   bool
	Operators string
	ActDB     outbox.DB
	Timeout   time.Duration // of one statement of an action
	Level     LogLevel

	Instance string
	Version  string
	DB       outbox.DB          // read-only sessions
	Diagnose func(error) string // words for an error of Postgres
	Scope    records.Scope
	Health   *admin.Health
	Gatherer prometheus.Gatherer // of the charts
	Settings []Setting           // secrets masked
	Shards   func() []Shard      // all of the instance; nil where there is one
	Log      *zap.Logger
}

// Shard is who leads a shard, as the instance knows it. Names stay; fields may be added.
type Shard struct {
	Number int    `json:"number"`
	Schema string `json:"schema"`
	Group  string `json:"group"`
	Server string `json:"server"` // HOST:PORT/DATABASE
	Leader string `json:"leader"` // empty when nobody leads
	Here   bool   `json:"here"`   // it is the one of this page
	Page   string `json:"page"`   // of the shard, on this instance
}

// LogLevel shows the level of the log, and changes it in the name of somebody.
type LogLevel struct {
	Show   func() string
	Change func(level, by string) error
}

// Setting is one effective setting.
type Setting struct {
	Key    string `json:"key"`
	Value  string `json:"value"`
	Source string `json:"source"`
}

// Server is a bound desk. Call Run once, or Close.
type Server struct {
	o       Options
	log     *zap.Logger
	ln      net.Listener
	srv     *http.Server
	pages   map[string]*template.Template
	reader  reader
	samples *samples
	hub     hub
	jobs    jobs
	here    bool // listens on loopback only
}

// Listen binds the address and serves nothing yet. An address off loopback without TLS and a
// login is an error, and so is a web configuration that cannot be read.
func Listen(ctx context.Context, o Options) (*Server, error) {
	host, _, err := net.SplitHostPort(o.Listen)
	if err != nil {
		return nil, fmt.Errorf("desk.listen: %w", err)
	}
	here := loopback(host)
	if o.WebConfig != "" {
		if err := web.Validate(o.WebConfig); err != nil {
			return nil, fmt.Errorf("desk.web_config: %w", err)
		}
	}
	if !here {
		if _, err := readLogin(o.WebConfig, true); err != nil {
			return nil, fmt.Errorf("desk.listen %s is not of this host alone: %w", o.Listen, err)
		}
	}
	if o.Actions {
		if _, err := readLogin(o.WebConfig, false); err != nil {
			return nil, fmt.Errorf("desk.actions needs to know who acts: %w", err)
		}
	}
	s := &Server{o: o, log: o.Log.Named("desk"), here: here}
	if s.pages, err = parsePages(); err != nil {
		return nil, err
	}
	var lc net.ListenConfig
	ln, err := lc.Listen(ctx, "tcp", o.Listen)
	if errors.Is(err, syscall.EADDRINUSE) && !o.Fixed {
		if ln, err = lc.Listen(ctx, "tcp", net.JoinHostPort(host, "0")); err == nil {
			s.log.Warn("default port is taken; serving on a free one", zap.String("event", "desk.other_port"), zap.String("address", ln.Addr().String()))
		}
	}
	if err != nil {
		return nil, fmt.Errorf("listen for the desk; set WEFT_DESK_LISTEN to another address, or to nothing: %w", err)
	}
	s.ln = ln
	s.reader = reader{o: o}
	s.samples = newSamples(o.Gatherer, o.Scope.Tables)
	s.jobs.queue = make(chan func(context.Context))
	s.hub = hub{viewers: map[*viewer]struct{}{}}
	s.srv = &http.Server{
		Handler:           s.handler(),
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      30 * time.Second, // a stream moves it on with each message
		IdleTimeout:       60 * time.Second,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          zap.NewStdLog(s.log),
	}
	return s, nil
}

// Addr returns host:port of the listener.
func (s *Server) Addr() string { return s.ln.Addr().String() }

// URL returns where other people find the page. For all interfaces that is the first of the
// configured names, or else host.
func (s *Server) URL(host string) string {
	a, _ := s.ln.Addr().(*net.TCPAddr)
	name := s.Addr()
	if a != nil && a.IP.IsUnspecified() {
		first, _, _ := strings.Cut(s.o.Hosts, ",")
		name = net.JoinHostPort(cmp.Or(first, host), strconv.Itoa(a.Port))
	}
	if l, _ := readLogin(s.o.WebConfig, false); l.tls {
		return "https://" + name + "/"
	}
	return "http://" + name + "/"
}

// Close releases the listener of a Server that was not run.
func (s *Server) Close() { _ = s.ln.Close() }

// Run serves until ctx ends, then ends all streams, lets other answers finish for a short
// while, and returns nil. Any other error means that serving broke.
func (s *Server) Run(ctx context.Context) error {
	s.log.Info("desk is served", zap.String("event", "desk.serving"), zap.String("address", s.Addr()), zap.Bool("web_config", s.o.WebConfig != ""), zap.Bool("actions", s.o.Actions))
	g, ctx := errgroup.WithContext(ctx)
	s.srv.BaseContext = func(net.Listener) context.Context { return ctx }
	g.Go(func() error {
		file := s.o.WebConfig
		err := web.Serve(s.ln, s.srv, &web.FlagConfig{WebConfigFile: &file}, slog.New(slog.DiscardHandler))
		if !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("serve the desk on %s: %w", s.Addr(), err)
		}
		return nil
	})
	g.Go(func() error { s.samples.run(ctx); return nil })
	g.Go(func() error { s.broadcast(ctx); return nil })
	for range jobsAtOnce {
		g.Go(func() error { s.jobs.work(ctx); return nil })
	}
	g.Go(func() error {
		<-ctx.Done()
		stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeGrace)
		defer cancel()
		if s.srv.Shutdown(stop) != nil {
			_ = s.srv.Close()
		}
		return nil
	})
	return g.Wait()
}

// hosts are the names that the page has.
func (o Options) hosts() []string {
	names := []string{"localhost", "127.0.0.1", "::1"}
	for name := range strings.SplitSeq(o.Hosts, ",") {
		if name != "" {
			names = append(names, strings.ToLower(name))
		}
	}
	return names
}
