package desk

import (
	"bytes"
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"io/fs"
	"net/http"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/samuelhu324-dev/weft/internal/admin"
	"github.com/samuelhu324-dev/weft/internal/postgres"
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
}

// badRequest is an error of the person who asks.
type badRequest struct{ error }

// view answers one path: it returns its data, or an error.
type view struct {
	path, title, template string
	read                  func(s *Server, ctx context.Context, q query) (any, error)
}

// query are the parameters of a request.
type query map[string]string

func (s *Server) views() []view {
	return []view{
		{"/{$}", "Overview", "overview", (*Server).overview},
		{"/failed", "Dead letters", "failed", (*Server).failed},
		{"/event", "Event", "event", (*Server).event},
		{"/audit", "Audit", "audit", (*Server).audit},
		{"/settings", "Settings", "settings", (*Server).settings},
	}
}

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
	for _, name := range []string{"overview", "failed", "event", "audit", "settings"} {
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
	q, hidden := query{}, ""
	for name, values := range req.URL.Query() {
		text := strings.TrimSpace(values[0])
		if q[name] = inert(text); q[name] != text {
			hidden = name
		}
	}
	ctx, cancel := context.WithTimeout(req.Context(), 20*time.Second)
	defer cancel()
	data, err := v.read(s, ctx, q)
	if hidden != "" {
		err = badRequest{fmt.Errorf("%s holds characters that are not seen", hidden)}
	}
	status, text := s.explain(v, err)
	w.Header().Add("Vary", "Accept")
	if asJSON {
		if err != nil {
			data = map[string]string{"error": text}
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		_ = enc.Encode(data) // the viewer may be gone
		return
	}
	s.render(w, v, status, page{Title: v.title, Path: strings.TrimSuffix(v.path, "{$}"), Live: v.template == "overview",
		Query: q, Error: text, Data: data})
}

// explain returns the status and the words for an error.
func (s *Server) explain(v view, err error) (status int, text string) {
	var bad badRequest
	switch {
	case err == nil:
		return http.StatusOK, ""
	case errors.As(err, &bad):
		return http.StatusBadRequest, inert(bad.Error())
	case errors.Is(err, errNotFound):
		return http.StatusNotFound, inert(err.Error())
	default:
		s.log.Warn("page could not be read", zap.String("event", "desk.unread"), zap.String("path", v.path), zap.Error(err))
		_, text := postgres.Diagnose(err)
		return http.StatusServiceUnavailable, inert(text)
	}
}

func (s *Server) render(w http.ResponseWriter, v view, status int, p page) {
	report := s.o.Health.Report()
	p.Instance, p.Role = report.Instance, report.Role
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
