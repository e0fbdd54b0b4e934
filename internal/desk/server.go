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

// closeGrace is how long Run waits for answers under way before it cuts their connections.
const closeGrace = 300 * time.Millisecond

// Options say what the desk shows, where, and to whom. All requests share them, so functions and
// pools must be safe for concurrent use. DB, Diagnose, Health, Gatherer and Log are needed, and ActDB
// and Level with Actions; Scope has at least one table.
type Options struct {
	Listen string // host:port; port 0 picks a free one
	// Fixed makes a taken port an error; otherwise Listen takes a free port instead and logs a warning.
	Fixed     bool
	Hosts     string // further names of the page, without ports, separated by commas
	WebConfig string // file with TLS and users, as the exporter toolkit reads it; empty for none
	// Actions lets the Operators, names separated by commas, change things with ActDB. It needs a
	// WebConfig with a login. Without Actions nothing uses Operators and ActDB.
	Actions   bool
	Operators string
	ActDB     outbox.DB
	Timeout   time.Duration // of one statement of an action or its preview; over 0
	Level     LogLevel

	Instance string
	Version  string
	DB       outbox.DB          // read-only sessions
	Diagnose func(error) string // what to show for an error of Postgres
	Scope    records.Scope
	Health   *admin.Health
	Gatherer prometheus.Gatherer // the charts are made from its metrics
	Settings []Setting           // with secrets masked: the desk shows them to every viewer
	Shards   func() []Shard      // all shards of the instance; nil where the tables are in no shards
	Log      *zap.Logger
}

// Shard says who leads a shard, as the instance knows it. It is part of the JSON of [Overview]: names
// stay; fields may be added.
type Shard struct {
	Number int    `json:"number"`
	Schema string `json:"schema"`
	Group  string `json:"group"`
	Server string `json:"server"` // HOST:PORT/DATABASE
	Leader string `json:"leader"` // name of an instance; empty when nobody leads
	Here   bool   `json:"here"`   // this page is about it
	Page   string `json:"page"`   // URL of its page on this instance; empty without one
}

// LogLevel shows and changes the level of this instance's log. The desk knows the levels debug, info,
// warn and error.
type LogLevel struct {
	Show   func() string
	Change func(level, by string) error // by names who asked for it
}

// Setting is one setting in effect, as the page and its JSON show it.
type Setting struct {
	Key    string `json:"key"`
	Value  string `json:"value"`
	Source string `json:"source"` // where the value was given; default where nowhere
}

// Server is a desk that has bound its address. Its owner calls Run once, or else Close. Addr and URL
// may be called at any time.
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
	here    bool          // listens on loopback only
	grace   time.Duration // closeGrace, but for tests
}

// Listen binds the address and serves nothing yet; ctx bounds the binding alone. It returns an error
// for an address off loopback without TLS and a login, for Actions without a login, and for a web
// configuration that cannot be read. A host name other than localhost counts as off loopback.
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
	s := &Server{o: o, log: o.Log.Named("desk"), here: here, grace: closeGrace}
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

// Addr returns the listener's address as host:port, with the port that was picked.
func (s *Server) Addr() string { return s.ln.Addr().String() }

// URL returns the address of the page, for a browser. When the desk listens on all interfaces
// (0.0.0.0 or ::) its host is the first of Options.Hosts, or host where there is none; otherwise it
// is the listener's, and host is not used. It begins with https where the web configuration, which URL
// reads anew, has a certificate.
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

// Close releases the listener of a Server that was not run; Run releases it itself.
func (s *Server) Close() { _ = s.ln.Close() }

// Run serves until ctx ends. It then ends all streams, gives other answers 300 ms, waits for the
// statements of readings and actions under way, and returns nil. An error means that serving broke
// before ctx ended.
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
		stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.grace)
		defer cancel()
		if s.srv.Shutdown(stop) != nil {
			_ = s.srv.Close()
		}
		return nil
	})
	return g.Wait()
}

// hosts returns the names, in lower case, that a request may give as its host.
func (o Options) hosts() []string {
	names := []string{"localhost", "127.0.0.1", "::1"}
	for name := range strings.SplitSeq(o.Hosts, ",") {
		if name != "" {
			names = append(names, strings.ToLower(name))
		}
	}
	return names
}
