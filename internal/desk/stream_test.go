package desk

import (
	"bufio"
	"encoding/json"
	"io"
	"math"
	"net/http"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"

	"github.com/samuelhu324-dev/weft/internal/admin"
	"github.com/samuelhu324-dev/weft/internal/testenv"
)

func TestStreamShowsNewLeader(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.health.SetRole(admin.Standby, 0)
	url, _ := r.running(t)
	resp, first := open(t, url)
	if first != "retry: 2000" || resp.Header.Get("Content-Type") != "text/event-stream" {
		t.Fatalf("got %q, %v", first, resp.Header)
	}
	parts := make(chan part, 100)
	go func() {
		defer close(parts)
		lines := bufio.NewScanner(resp.Body)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			var got []part
			if text, ok := strings.CutPrefix(lines.Text(), "data: "); ok && json.Unmarshal([]byte(text), &got) == nil {
				for _, p := range got {
					parts <- p
				}
			}
		}
	}()
	await := func(id, words string) {
		t.Helper()
		for p := range parts {
			if p.ID == id && strings.Contains(p.HTML, words) {
				return
			}
		}
		t.Fatalf("the stream has ended without %q in %s", words, id)
	}
	await("election", "Nobody leads.")
	await("charts-search_index_to_elastic", "")
	r.lead(t, "b", 7)
	await("election", "<bdi>b</bdi></strong> leads since")
	await("terms", ">7</th>")
}

func TestStreamsEndWithTheDesk(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.grace = time.Minute // which is not what ends them
	url, stop := r.running(t)
	var bodies []io.Reader
	for range 20 {
		resp, _ := open(t, url)
		bodies = append(bodies, resp.Body)
	}
	if err := stop(); err != nil {
		t.Errorf("got %v, want nil", err)
	}
	for i, b := range bodies {
		if _, err := io.ReadAll(b); err != nil {
			t.Errorf("stream %d was cut: %v", i, err)
		}
	}
	testenv.Eventually(t, func() bool { return r.hub.count() == 0 }, "the end of all streams")
}

func TestStreamsAreBounded(t *testing.T) {
	t.Parallel()
	r := setup(t)
	url, _ := r.running(t)
	for range MaxStreams {
		if resp, _ := open(t, url); resp.StatusCode != http.StatusOK {
			t.Fatal(resp.Status)
		}
	}
	resp, _ := open(t, url)
	if resp.StatusCode != http.StatusServiceUnavailable || resp.Header.Get("Retry-After") == "" {
		t.Errorf("one more: got %s, want 503", resp.Status)
	}
}

func TestSlowViewerIsDroppedAndOthersStay(t *testing.T) {
	t.Parallel()
	h := hub{viewers: map[*viewer]struct{}{}}
	slow, quick := h.add(), h.add()
	all, changed := []part{{"a", "1"}, {"b", "1"}}, []part{{"b", "1"}}
	h.send(all, changed)
	if got := <-quick.next; len(got) != 2 {
		t.Errorf("first message: got %v, want all", got)
	}
	h.send(all, nil) // nothing to say drops nobody
	h.send(all, changed)
	if got := <-quick.next; len(got) != 1 {
		t.Errorf("second message: got %v, want what has changed", got)
	}
	<-slow.next
	if _, open := <-slow.next; open || h.count() != 1 {
		t.Errorf("the slow viewer stays: open %v, %d viewers", open, h.count())
	}
}

func TestQuantileOfWhatWasCountedBetweenSamples(t *testing.T) {
	t.Parallel()
	histogram := func(counts ...uint64) (out []*dto.Bucket) {
		for i, n := range counts {
			bound := []float64{1, 2, 4}[i]
			out = append(out, &dto.Bucket{CumulativeCount: &n, UpperBound: &bound})
		}
		return out
	}
	for _, tc := range []struct {
		q           float64
		now, before []*dto.Bucket
		want        float64
	}{
		{0.5, histogram(10, 10, 10), nil, 0.5},
		{0.5, histogram(10, 20, 20), histogram(10, 10, 10), 1.5},
		{0.99, histogram(0, 0, 100), histogram(0, 0, 0), 3.98},
		{0.5, histogram(7, 7, 7), histogram(7, 7, 7), math.NaN()},
		{0.5, nil, nil, math.NaN()},
	} {
		if got := quantile(tc.q, tc.now, tc.before); math.Abs(got-tc.want) > 1e-9 || math.IsNaN(got) != math.IsNaN(tc.want) {
			t.Errorf("quantile %v: got %v, want %v", tc.q, got, tc.want)
		}
	}
}

func TestRingKeepsTheLastHour(t *testing.T) {
	t.Parallel()
	r := &ring{}
	begin := time.Unix(1_000_000, 0)
	s := &samples{rings: map[string]*ring{"p": r}}
	for i := range sampleCount + 3 {
		r.add(begin.Add(time.Duration(i)*sampleEvery), sampleEvery.Seconds(), counters{counted: true, lag: float64(i), oldest: math.NaN(), done: float64(10 * i)})
	}
	at, values, _ := s.history("p")
	if len(at) != sampleCount || values[0][seriesLag] != 3 || values[sampleCount-1][seriesLag] != float64(sampleCount+2) || at[sampleCount-1].Sub(at[0]) != time.Hour-sampleEvery {
		t.Errorf("got %d samples from %v to %v", len(at), values[0][seriesLag], values[len(values)-1][seriesLag])
	}
	if rate := values[10][seriesDone]; rate != 2 {
		t.Errorf("rate: got %v, want 2", rate)
	}
	if drawn := charts(at, values, at[sampleCount-1]); len(drawn) != 2 || drawn[0].Top != 1000 || strings.Count(drawn[0].Series[0].Path(), "M") != 1 {
		t.Errorf("charts: got %+v", drawn)
	}
}
