package proxy

import (
	"net/http"
	"testing"
)

// A record of nothing is not that nobody recorded, and what could not be read is counted.
func TestRecorderKnowsWhatItHasNotSeen(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	if r.rec.Applied() == nil || r.rec.Unread() != 0 {
		t.Errorf("before any request: got %v and %d unread, want an empty record", r.rec.Applied(), r.rec.Unread())
	}
	for _, body := range []string{"{\"index\":{}}", "no bulk\n"} {
		if status, _, _ := r.do(http.MethodPost, r.bulkURL(r.tap), nil, body); status != http.StatusBadRequest {
			t.Errorf("request %q: got status %d, want Elasticsearch's own", body, status)
		}
	}
	if len(r.rec.Applied()) != 0 || r.rec.Unread() != 2 {
		t.Errorf("unreadable requests: got %v and %d unread, want 2 of these", r.rec.Applied(), r.rec.Unread())
	}
}
