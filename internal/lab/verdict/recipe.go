package verdict

import (
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/samuelhu324-dev/weft/internal/lab/rig"
)

// Outcome says how a run ended. It says nothing about what it shows.
type Outcome string

// The outcomes.
const (
	Running     Outcome = "running" // or it crashed
	Completed   Outcome = "completed"
	Failed      Outcome = "failed"
	Interrupted Outcome = "interrupted"
)

// Recipe says what was done.
type Recipe struct {
	Scenario string    `json:"scenario"`
	Run      string    `json:"run_id"`
	About    string    `json:"about"`
	Outcome  Outcome   `json:"outcome"`
	Error    string    `json:"error,omitempty"`
	Started  time.Time `json:"started_at"`
	Ended    time.Time `json:"ended_at,omitzero"`

	Environment string `json:"environment"` // of the database, by its sentinel or its name
	Servers     string `json:"servers"`     // embedded, given
	Postgres    string `json:"postgres"`    // address
	Elastic     string `json:"elasticsearch"`
	Schema      string `json:"schema"`
	Index       string `json:"index"`
	Group       string `json:"group"`
	Weft        string `json:"weft"` // version
	Service     string `json:"otel_service_name"`

	WithoutFault bool                         `json:"without_fault"`
	Parameters   map[string]any               `json:"parameters"`
	Settings     map[string]map[string]string `json:"settings"` // of each instance
	Faults       []string                     `json:"faults"`
	Events       []Event                      `json:"events"`
}

// BrokenOff says how and when the run was broken off; "" for one that was not. Its evidence is of a part, which no assertion
// is made for.
func (r Recipe) BrokenOff() string {
	switch r.Outcome {
	case Interrupted:
		return "interrupted at " + r.Ended.Format(time.RFC3339)
	case Running:
		return "begun at " + r.Started.Format(time.RFC3339) + ", and killed since or still running"
	default:
		return ""
	}
}

// Event is one that the drill wrote.
type Event struct {
	ID      uuid.UUID `json:"event_id"`
	Entity  string    `json:"entity"` // type:id, which is also the document's id
	Op      string    `json:"op"`
	Version int64     `json:"event_version"`
	Role    string    `json:"role,omitempty"` // in the drill
}

// Mark is a moment of a run.
type Mark struct {
	At       time.Time `json:"at"`
	Kind     MarkKind  `json:"kind"`
	Instance string    `json:"instance,omitempty"`
	What     string    `json:"what"`
}

// MarkKind says what a [Mark] is about.
type MarkKind string

// The kinds of marks.
const (
	Step  MarkKind = "step"
	Fault MarkKind = "fault"
	Heal  MarkKind = "heal"
	Term  MarkKind = "term"
)

// Address is what of a URL may be written down: host, port and path.
func Address(raw string) string {
	var hosts []string
	for one := range strings.SplitSeq(raw, ",") {
		if u, err := url.Parse(one); err == nil {
			hosts = append(hosts, u.Host+u.Path)
		}
	}
	return strings.Join(hosts, ",")
}

// Settings returns the settings among environ that may be written down: those of weft
// and of its traces, without URLs and without what is named as a secret.
func Settings(environ []string) map[string]string {
	out := map[string]string{}
	for _, e := range environ {
		name, value, _ := strings.Cut(e, "=")
		secret := slices.ContainsFunc([]string{"URL", "USERNAME", "PASSWORD", "KEY", "TOKEN", "SECRET", "HEADERS", "ENDPOINT"}, func(word string) bool {
			return strings.Contains(name, word)
		})
		if rig.IsSetting(name) && !secret {
			out[name] = value
		}
	}
	return out
}

// ExportedFile says what an export of traces has found.
const ExportedFile = ExportDir + "/_exported.json"

// Exported is what an export of traces has found.
type Exported struct {
	Source  string    `json:"source"` // capture, or the address of a Jaeger
	Service string    `json:"service"`
	At      time.Time `json:"at"`
	Queries []Query   `json:"queries"`
	Traces  int       `json:"traces"` // different ones
	Spans   int       `json:"spans"`
}

// Query is one question for traces, with the file of the answer.
type Query struct {
	By        string `json:"by"` // event, batch, schema (batches of it), claims, entity
	ID        string `json:"id"`
	Operation string `json:"operation"`
	File      string `json:"file"`
	Traces    int    `json:"traces"`
	Spans     int    `json:"spans"`
	Tag       string `json:"-"` // attribute that has the id
}
