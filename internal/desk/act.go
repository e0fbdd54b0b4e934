package desk

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/samuelhu324-dev/weft/internal/records"
	"github.com/samuelhu324-dev/weft/outbox"
)

// maxForm bounds the body of an action.
const maxForm = 64 << 10

// action is something that an operator may do. plan says what it would do now; run does it.
type action struct {
	title string
	plan  func(s *Server, ctx context.Context, db outbox.DB, q query) (plan, error)
	run   func(s *Server, ctx context.Context, p plan, job *Job) (result string, err error)
}

// plan is what an action would do, as its preview shows it. Names stay; fields may be added.
type plan struct {
	Action     string                    `json:"action"`
	Title      string                    `json:"title"`
	Projection string                    `json:"projection"`
	What       string                    `json:"what"`   // what it would change, in words
	Count      int64                     `json:"count"`  // how many events
	Groups     []records.DeadLetterGroup `json:"groups"` // of these events
	// State is what the action must find unchanged when it is confirmed.
	State  string            `json:"state"`
	Fields map[string]string `json:"fields"` // that confirm it, besides why

	sel     outbox.Selector
	letters *outbox.DeadLetters
	epoch   int64
}

// refused is an error that says what is in the way of a request.
type refused struct {
	status int
	error
}

func refuse(status int, format string, args ...any) refused {
	return refused{status, fmt.Errorf(format, args...)}
}

func actions() map[string]action {
	return map[string]action{
		"replay":      {"Replay", (*Server).planSelected, (*Server).replay},
		"replay_all":  {"Replay", (*Server).planAll, (*Server).replay},
		"discard":     {"Discard", (*Server).planSelected, (*Server).discard},
		"discard_all": {"Discard", (*Server).planAll, (*Server).discard},
		"pause":       {"Pause", (*Server).planPause, (*Server).pause},
		"resume":      {"Resume", (*Server).planPause, (*Server).pause},
		"resign":      {"Hand over", (*Server).planResign, (*Server).resign},
		"log_level":   {"Change the log level", (*Server).planLevel, (*Server).changeLevel},
	}
}

// planned returns the action that is asked for, and what it would do now.
func (s *Server) planned(ctx context.Context, db outbox.DB, q query) (action, plan, error) {
	a, ok := actions()[q["action"]]
	if !ok {
		return a, plan{}, badRequest{fmt.Errorf("there is no action %q", q["action"])}
	}
	p, err := a.plan(s, ctx, db, q)
	p.Action, p.Title = q["action"], a.title
	if p.Groups == nil {
		p.Groups = []records.DeadLetterGroup{}
	}
	if p.Fields == nil {
		p.Fields = map[string]string{}
	}
	p.Fields["action"], p.Fields["state"] = p.Action, p.State
	if p.Projection != "" {
		p.Fields["projection"] = p.Projection
	}
	return a, p, err
}

// preview reads what an action would do, and changes nothing.
func (s *Server) preview(ctx context.Context, q query) (any, error) {
	_, p, err := s.planned(ctx, s.o.DB, q)
	return p, err
}

// mayAct says what keeps a person from acting.
func (s *Server) mayAct(who person) error {
	switch {
	case !s.o.Actions:
		return refuse(http.StatusForbidden, "this page only reads: desk.actions is off")
	case who.Name == "":
		return refuse(http.StatusForbidden, "this page does not know who you are: the login of desk.web_config is missing")
	case !who.Operator:
		return refuse(http.StatusForbidden, "%s may read this page, not act: desk.operators does not name %s", who.Name, who.Name)
	default:
		return nil
	}
}

// act does what a preview has shown, unless that has changed.
func (s *Server) act(w http.ResponseWriter, req *http.Request) {
	v := s.actView()
	job, p, q, err := s.perform(w, req)
	if err != nil {
		s.write(w, req, v, q, p, err)
		return
	}
	http.Redirect(w, req, "/result?job="+strconv.FormatInt(job.ID, 10), http.StatusSeeOther)
}

func (s *Server) perform(w http.ResponseWriter, req *http.Request) (*Job, plan, query, error) {
	who := s.whois(req, true)
	if err := s.mayAct(who); err != nil {
		return nil, plan{}, query{}, err
	}
	req.Body = http.MaxBytesReader(w, req.Body, maxForm)
	if err := req.ParseForm(); err != nil {
		return nil, plan{}, query{}, badRequest{errors.New("the form cannot be read")}
	}
	if req.URL.Path == "/log/level" {
		req.PostForm.Set("action", "log_level")
		req.PostForm.Set("state", s.o.Level.Show())
	}
	q, err := readQuery(req.PostForm)
	if err != nil {
		return nil, plan{}, q, err
	}
	ctx, cancel := context.WithTimeout(req.Context(), answerTimeout)
	defer cancel()
	a, p, err := s.planned(ctx, s.o.ActDB, q)
	if err != nil {
		return nil, p, q, err
	}
	if err := (outbox.LetterOrder{By: who.Name, Why: q["why"]}).Validate(); err != nil {
		return nil, p, q, badRequest{err}
	}
	if p.State != q["state"] {
		return nil, p, q, refuse(http.StatusConflict, "nothing was done: the preview showed %q, and now it is %q. This is the new preview", q["state"], p.State)
	}
	job := s.start(ctx, a, p, who.Name, q["why"])
	if job == nil {
		return nil, p, q, refuse(http.StatusServiceUnavailable, "nothing was done: %d actions are under way on this instance; see the results, and try again", jobsAtOnce)
	}
	return job, p, q, nil
}

// results lists the actions of this instance.
func (s *Server) results(_ context.Context, q query) (any, error) {
	var id int64
	if text := q["job"]; text != "" {
		var err error
		if id, err = strconv.ParseInt(text, 10, 64); err != nil || id < 1 {
			return []Job{}, badRequest{fmt.Errorf("job %q: want a number", text)}
		}
	}
	found := s.jobs.list(id)
	if id > 0 && len(found) == 0 {
		return found, refuse(http.StatusNotFound, "this instance does not know action %d: the audit has all actions of all instances", id)
	}
	return found, nil
}

// readQuery reads the parameters of a request. Those of one name are joined by commas.
func readQuery(values url.Values) (query, error) {
	q := query{}
	for name, texts := range values {
		text := strings.TrimSpace(strings.Join(texts, ","))
		if q[name] = inert(text); q[name] != text {
			return q, badRequest{fmt.Errorf("%s holds characters that are not seen", inert(name))}
		}
	}
	return q, nil
}

// table returns the table of the projection that is asked for, the first one for none.
func (s *Server) table(q query) (records.Table, error) {
	tables := s.o.Scope.Tables
	name := q["projection"]
	if name == "" {
		return tables[0], nil
	}
	i := slices.IndexFunc(tables, func(t records.Table) bool { return t.Projection == name })
	if i < 0 {
		return tables[0], badRequest{fmt.Errorf("projection %q: this instance has %s", name, strings.Join(s.projections(), ", "))}
	}
	return tables[i], nil
}

func (s *Server) projections() (names []string) {
	for _, t := range s.o.Scope.Tables {
		names = append(names, t.Projection)
	}
	return names
}
