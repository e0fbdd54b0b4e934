package traffic

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/samuelhu324-dev/weft/internal/testenv/reconcile"
)

// Searcher searches for the same documents all the time, as users do, and counts what no user
// should see. Its fields are set before Run.
type Searcher struct {
	Elastic *reconcile.Client
	Index   string // an alias, or an index
	Watched []string
	Every   time.Duration // from one search to the next; 0 is a millisecond

	mu       sync.Mutex
	found    Searches
	versions map[string]int64
	last     Move // its To and At are those of the last answer
}

// Searches are what became of them.
type Searches struct {
	Answered int    `json:"answered"`
	Away     int    `json:"away"`   // no answer, or one of a server that does not work
	Failed   int    `json:"failed"` // refused, as without an index of the name
	Stale    int    `json:"stale"`  // a watched document was missing, or older than before
	First    string `json:"first"`  // of those that failed or were stale
	Moves    []Move `json:"moves"`
}

// Move is a change of the index that answers.
type Move struct {
	From  string    `json:"from"`
	To    string    `json:"to"`
	At    time.Time `json:"at"`
	GapMS float64   `json:"gap_ms"` // between the end of the last search in the old index and that of the first in the new
}

const (
	searchPeriod  = time.Millisecond
	searchTimeout = 5 * time.Second
)

// Run searches until ctx ends. All watched documents must be visible before.
func (s *Searcher) Run(ctx context.Context) {
	body := map[string]any{
		"size": len(s.Watched), "version": true, "_source": false, "query": map[string]any{"ids": map[string]any{"values": s.Watched}},
	}
	path := "/" + url.PathEscape(s.Index) + "/_search?allow_partial_search_results=false"
	tick := time.NewTicker(cmp.Or(s.Every, searchPeriod))
	defer tick.Stop()
	for ctx.Err() == nil {
		var answer searchAnswer
		limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), searchTimeout)
		err := s.Elastic.Do(limited, http.MethodPost, path, body, &answer)
		cancel()
		s.saw(&answer, err)
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
}

type searchHit struct {
	Index   string `json:"_index"`
	ID      string `json:"_id"`
	Version int64  `json:"_version"`
}

type searchAnswer struct {
	Hits struct {
		Hits []searchHit `json:"hits"`
	} `json:"hits"`
}

func (s *Searcher) saw(answer *searchAnswer, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	refused, ok := errors.AsType[*reconcile.StatusError](err)
	switch {
	case ok && refused.Code < http.StatusInternalServerError && refused.Code != http.StatusTooManyRequests:
		s.found.Failed++
		s.example("%v", refused)
		return
	case err != nil:
		s.found.Away++
		s.versions = nil // a server that was killed may lose what it has shown before it was on disk
		return
	}
	s.found.Answered++
	now, seen := time.Now(), map[string]int64{}
	for _, h := range answer.Hits.Hits {
		seen[h.ID] = h.Version
		if h.Index != s.last.To {
			if s.last.To != "" {
				s.found.Moves = append(s.found.Moves, Move{From: s.last.To, To: h.Index, At: now, GapMS: float64(now.Sub(s.last.At).Microseconds()) / 1000})
			}
			s.last.To = h.Index
		}
	}
	s.last.At = now
	for _, id := range s.Watched {
		if version, there := seen[id]; !there || version < s.versions[id] {
			s.found.Stale++
			s.example("document %s: version %d (0 is none) in %s, after version %d", id, version, s.last.To, s.versions[id])
			break
		}
	}
	s.versions = seen
}

func (s *Searcher) example(format string, args ...any) {
	if s.found.First == "" {
		s.found.First = fmt.Sprintf(format, args...)
	}
}

// Found returns what became of the searches so far.
func (s *Searcher) Found() Searches {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.found
}
