package desk

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"time"

	"go.uber.org/zap"
)

// MaxStreams is how many viewers at once see the overview change by itself; the next one gets 503.
const MaxStreams = 32

const (
	broadcastEvery = time.Second
	sendTimeout    = 5 * time.Second  // of one message to one viewer
	quietMost      = 15 * time.Second // between two checks whether a viewer is there and may see the page
)

// part is a piece of the overview that is sent when it has changed.
type part struct {
	ID   string `json:"id"`
	HTML string `json:"html"`
}

// viewer is one stream. Its channel holds one message; a viewer that has not taken it when the
// next one comes is dropped.
type viewer struct {
	next  chan []part
	fresh bool // it has been sent nothing yet
}

// hub holds the streams.
type hub struct {
	mu      sync.Mutex
	viewers map[*viewer]struct{}
}

// add returns nil when MaxStreams are there.
func (h *hub) add() *viewer {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.viewers) >= MaxStreams {
		return nil
	}
	v := &viewer{next: make(chan []part, 1), fresh: true}
	h.viewers[v] = struct{}{}
	return v
}

func (h *hub) remove(v *viewer) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.viewers, v)
}

func (h *hub) count() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.viewers)
}

// send gives changed to every viewer, and all to those that have got nothing yet.
func (h *hub) send(all, changed []part) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for v := range h.viewers {
		parts := changed
		if v.fresh {
			parts = all
		}
		if len(parts) == 0 {
			continue
		}
		select {
		case v.next <- parts:
			v.fresh = false
		default:
			delete(h.viewers, v)
			close(v.next)
		}
	}
}

// broadcast reads the overview while somebody watches, and sends what has changed.
func (s *Server) broadcast(ctx context.Context) {
	tick := time.NewTicker(broadcastEvery)
	defer tick.Stop()
	sent := map[string]string{}
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if s.hub.count() == 0 {
			continue
		}
		all, err := s.parts(s.reader.overview(ctx, s.samples))
		if err != nil {
			s.log.Error("page could not be written", zap.String("event", "desk.fault"), zap.String("path", "/live"), zap.Error(err))
			continue
		}
		var changed []part
		for _, p := range all {
			if sent[p.ID] != p.HTML {
				changed = append(changed, p)
			}
			sent[p.ID] = p.HTML
		}
		s.hub.send(all, changed)
	}
}

// parts renders the pieces of the overview.
func (s *Server) parts(o Overview) ([]part, error) {
	var out []part
	add := func(id, name string, data any) error {
		var b bytes.Buffer
		if err := s.pages["parts"].ExecuteTemplate(&b, name, data); err != nil {
			return fmt.Errorf("part %s: %w", id, err)
		}
		out = append(out, part{id, b.String()})
		return nil
	}
	if err := add("election", "election", o); err != nil {
		return nil, err
	}
	if err := add("terms", "terms", o); err != nil {
		return nil, err
	}
	for _, p := range o.Projections {
		if err := add("state-"+p.Projection, "state", p); err != nil {
			return nil, err
		}
		if err := add("charts-"+p.Projection, "charts", p); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// stream sends server-sent events until the viewer leaves, is too slow, or may no longer see the
// page, or the desk ends.
func (s *Server) stream(w http.ResponseWriter, req *http.Request) {
	v := s.hub.add()
	if v == nil {
		w.Header().Set("Retry-After", "10")
		http.Error(w, fmt.Sprintf("%d viewers are here already; reload the page to see news", MaxStreams), http.StatusServiceUnavailable)
		return
	}
	defer s.hub.remove(v)
	who := s.whois(req, false)
	w.Header().Set("Content-Type", "text/event-stream")
	control := http.NewResponseController(w)
	send := func(format string, args ...any) bool {
		_ = control.SetWriteDeadline(time.Now().Add(sendTimeout)) // a writer without deadlines has its own
		_, err := fmt.Fprintf(w, format, args...)
		return err == nil && control.Flush() == nil
	}
	if !send("retry: 2000\n\n") {
		return
	}
	quiet := time.NewTicker(quietMost)
	defer quiet.Stop()
	for {
		select {
		case <-req.Context().Done():
			return
		case <-quiet.C:
			if s.whois(req, false).Name != who.Name || !s.here && s.refuses() || !send(": still here\n\n") {
				return
			}
		case parts, open := <-v.next:
			if !open {
				return
			}
			text, err := json.Marshal(parts)
			if err != nil || !send("event: parts\ndata: %s\n\n", text) {
				return
			}
		}
	}
}
