package desk

import (
	"bytes"
	"cmp"
	"context"
	"embed"
	"errors"
	"fmt"
	"html/template"
	"io/fs"
	"net/http"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/samuelhu324-dev/weft/internal/admin"
	"github.com/samuelhu324-dev/weft/internal/records"
)

//go:embed templates static
var assets embed.FS

// page is what each template gets.
type page struct {
	Title    string
	Path     string // of the navigation
	Instance string
	Role     admin.Role
	Live     bool
	Query    map[string]string // of the form, as given
	Error    string            // what is wrong with the request
	Data     any               // and its JSON
	Actions  bool              // are switched on
	Who      person
	Level    string // of the log
}

// answerTimeout bounds the reading of a page.
const answerTimeout = 20 * time.Second

// badRequest is an error of the person who asks.
type badRequest struct{ error }

// view answers one path: it returns its data, or an error.
type view struct {
	path, title, template string
	read                  func(s *Server, ctx context.Context, q query) (any, error)
	operators             bool // nobody else may see it
}

// query are the parameters of a request.
type query map[string]string

func (s *Server) views() []view {
	return []view{
		{"/{$}", "Overview", "overview", (*Server).overview, false},
		{"/failed", "Dead letters", "failed", (*Server).failed, false},
		{"/event", "Event", "event", (*Server).event, false},
		{"/audit", "Audit", "audit", (*Server).audit, false},
		{"/settings", "Settings", "settings", (*Server).settings, false},
		{"/result", "Results", "result", (*Server).results, false},
		s.actView(),
	}
}

// actView is the preview of an action.
func (s *Server) actView() view { return view{"/act", "Preview", "act", (*Server).preview, true} }

func (s *Server) overview(ctx context.Context, _ query) (any, error) {
	return s.reader.overview(ctx, s.samples), nil
}

func (s *Server) settings(context.Context, query) (any, error) { return s.o.Settings, nil }

func parsePages() (map[string]*template.Template, error) {
	base, err := template.New("").Funcs(functions).ParseFS(assets, "templates/layout.html", "templates/parts.html")
	if err != nil {
		return nil, fmt.Errorf("pages: %w", err)
	}
	pages := map[string]*template.Template{"parts": base}
	for _, name := range []string{"overview", "failed", "event", "audit", "settings", "act", "result"} {
		one, err := base.Clone()
		if err == nil {
			one, err = one.ParseFS(assets, "templates/"+name+".html")
		}
		if err != nil {
			return nil, fmt.Errorf("page %s: %w", name, err)
		}
		pages[name] = one
	}
	return pages, nil
}

func (s *Server) handler() http.Handler {
	mux := http.NewServeMux()
	for _, v := range s.views() {
		mux.HandleFunc("GET "+v.path, func(w http.ResponseWriter, req *http.Request) { s.answer(w, req, v, wantsJSON(req)) })
		mux.HandleFunc("GET /api"+v.path, func(w http.ResponseWriter, req *http.Request) { s.answer(w, req, v, true) })
	}
	mux.HandleFunc("GET /live", s.stream)
	mux.HandleFunc("POST /act", s.act)
	mux.HandleFunc("POST /log/level", s.act)
	mux.HandleFunc("GET /log/level", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, map[string]string{"level": s.o.Level.Show()})
	})
	static, err := fs.Sub(assets, "static")
	if err != nil {
		panic("desk: embedded assets: " + err.Error()) // a broken build
	}
	mux.Handle("GET /static/", http.StripPrefix("/static/", http.FileServerFS(static)))
	return s.guard(mux)
}

func wantsJSON(req *http.Request) bool {
	accept := req.Header.Get("Accept")
	return strings.Contains(accept, "application/json") && !strings.Contains(accept, "text/html")
}

// answer reads the data of a view, and writes it as a page or as JSON.
func (s *Server) answer(w http.ResponseWriter, req *http.Request, v view, asJSON bool) {
	ctx, cancel := context.WithTimeout(req.Context(), answerTimeout)
	defer cancel()
	q, wrong := readQuery(req.URL.Query())
	if v.operators && wrong == nil {
		wrong = s.mayAct(s.whois(req, false))
	}
	if v.operators && wrong != nil {
		s.respond(w, req, v, q, plan{}, wrong, asJSON)
		return
	}
	data, err := v.read(s, ctx, q)
	s.respond(w, req, v, q, data, cmp.Or(wrong, err), asJSON)
}

// write answers with the data, or the error, of a view.
func (s *Server) write(w http.ResponseWriter, req *http.Request, v view, q query, data any, err error) {
	s.respond(w, req, v, q, data, err, wantsJSON(req))
}

func (s *Server) respond(w http.ResponseWriter, req *http.Request, v view, q query, data any, err error, asJSON bool) {
	status, text := s.explain(v, err)
	w.Header().Add("Vary", "Accept")
	if asJSON {
		if err != nil {
			data = map[string]string{"error": text}
		}
		writeJSON(w, status, data)
		return
	}
	s.render(w, v, status, page{Title: v.title, Path: strings.TrimSuffix(v.path, "{$}"), Live: v.template == "overview",
		Query: q, Error: text, Data: data, Actions: s.o.Actions, Who: s.whois(req, false)})
}

func writeJSON(w http.ResponseWriter, status int, data any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = records.JSON(w, data) // the viewer may be gone
}

// explain returns the status and the words for an error.
func (s *Server) explain(v view, err error) (status int, text string) {
	var bad badRequest
	var no refused
	switch {
	case err == nil:
		return http.StatusOK, ""
	case errors.As(err, &bad):
		return http.StatusBadRequest, inert(bad.Error())
	case errors.As(err, &no):
		return no.status, inert(no.Error())
	case errors.Is(err, errNotFound):
		return http.StatusNotFound, inert(err.Error())
	default:
		s.log.Warn("page could not be read", zap.String("event", "desk.unread"), zap.String("path", v.path), zap.Error(err))
		return http.StatusServiceUnavailable, inert(s.o.Diagnose(err))
	}
}

func (s *Server) render(w http.ResponseWriter, v view, status int, p page) {
	report := s.o.Health.Report()
	p.Instance, p.Role = report.Instance, report.Role
	if s.o.Level.Show != nil {
		p.Level = s.o.Level.Show()
	}
	var b bytes.Buffer
	if err := s.pages[v.template].ExecuteTemplate(&b, "layout", p); err != nil {
		s.log.Error("page could not be written", zap.String("event", "desk.fault"), zap.String("path", v.path), zap.Error(err))
		http.Error(w, "this page could not be written; the log says why", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write(b.Bytes()) // the viewer may be gone
}
