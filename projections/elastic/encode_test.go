package elastic

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
)

func TestAppendString(t *testing.T) {
	t.Parallel()
	var all strings.Builder
	for r := range rune(0x120) {
		all.WriteRune(r)
	}
	for _, s := range []string{"", "plain", "\"\\\n\r\t\x00\x1f\x7f", all.String(), "日本 🚀 \u2028", "a\xffb\xc3", "\xed\xa0\x80"} {
		var got string
		enc := AppendString(nil, s)
		if err := json.Unmarshal(enc, &got); err != nil {
			t.Errorf("%q: %s: %v", s, enc, err)
		}
		// encoding/json replaces invalid bytes one by one as well.
		std, _ := json.Marshal(s)
		var want string
		_ = json.Unmarshal(std, &want)
		if got != want {
			t.Errorf("%q: got %q, want %q", s, got, want)
		}
		if b := AppendString(nil, []byte(s)); !bytes.Equal(b, enc) {
			t.Errorf("%q: as bytes %s, as string %s", s, b, enc)
		}
		if bytes.IndexByte(enc, '\n') >= 0 {
			t.Errorf("%q: holds a newline", s)
		}
	}
}

// A payload is compressed anew for each request, into buffers of the one before.
func TestPayloadCompressed(t *testing.T) {
	t.Parallel()
	p := &payload{}
	for _, want := range []string{"first", strings.Repeat("a longer one ", 10_000), "x"} {
		p.buf = append(p.buf, want...)
		p.compress()
		if len(want) > 1000 && len(p.buf) > len(want)/10 {
			t.Errorf("%d bytes became %d", len(want), len(p.buf))
		}
		r, err := gzip.NewReader(p.reader())
		if err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(r); string(got) != want || err != nil {
			t.Errorf("got %d bytes, %v, want %d", len(got), err, len(want))
		}
		p.detach()
	}
}

// A transport that goes on reading a body after the end of the request must never
// see the bytes of the next one.
func TestPayloadCutsOffLateReaders(t *testing.T) {
	t.Parallel()
	p := &payload{buf: []byte("first")}
	r := p.reader()
	b := make([]byte, 2)
	if n, err := r.Read(b); n != 2 || err != nil || p.read() != 2 {
		t.Fatalf("read: got %d, %v, %d sent", n, err, p.read())
	}
	p.detach()
	p.buf = append(p.buf, "second"...)
	if n, err := r.Read(b); n != 0 || !errors.Is(err, errDetached) {
		t.Errorf("late read: got %d, %v, want 0, %v", n, err, errDetached)
	}
	again, err := io.ReadAll(p.reader())
	if err != nil || string(again) != "second" {
		t.Errorf("new reader: got %q, %v", again, err)
	}
}

// echo answers a _bulk request from memory, so that the benchmark sees the sink and
// not a server.
type echo struct {
	answer []byte
	got    int64 // bytes of bodies
}

func (e *echo) RoundTrip(r *http.Request) (*http.Response, error) {
	n, _ := io.Copy(io.Discard, r.Body)
	e.got += n
	return &http.Response{
		StatusCode: 200,
		Header:     http.Header{"X-Elastic-Product": {"Elasticsearch"}},
		Body:       io.NopCloser(bytes.NewReader(e.answer)),
	}, nil
}

func BenchmarkWrite1000(b *testing.B)     { benchmarkWrite(b, false) }
func BenchmarkWrite1000Gzip(b *testing.B) { benchmarkWrite(b, true) }

func benchmarkWrite(b *testing.B, zip bool) {
	b.Helper()
	words := strings.Fields("the leader renews its lease before each batch and settles events in order per entity so that no document goes back when a server stops a standby takes over within seconds")
	actions := make([]Action, 1000)
	var answer bytes.Buffer
	answer.WriteString(`{"items":[`)
	for i := range actions {
		var text strings.Builder
		for n := i + 1; text.Len() < 200; n = n*1103515245 + 12345 {
			text.WriteString(words[(n>>16)&0xffff%len(words)] + " ")
		}
		id := uuid.NewSHA1(uuid.Nil, []byte{byte(i), byte(i >> 8)}).String()
		body := fmt.Appendf(nil, `{"entity_type":"block","entity_id":%q,"library_id":null,"text":%q,"snippet":null,"rank_score":1.5,"event_version":%d}`, id, text.String(), 1700000000000000+i)
		actions[i] = Action{ID: "block:" + id, Version: 1700000000000000 + int64(i), Body: body}
		if i > 0 {
			answer.WriteByte(',')
		}
		fmt.Fprintf(&answer, `{"index":{"_id":%q,"result":"created","status":201}}`, actions[i].ID)
	}
	answer.WriteString(`]}`)
	server := &echo{answer: answer.Bytes()}
	s, err := New(Config{URLs: []string{"http://localhost:1"}, Index: "i", Gzip: zip, Transport: server}, zap.NewNop(), prometheus.NewRegistry(), "p")
	if err != nil {
		b.Fatal(err)
	}
	s.target.kind = nameAlias
	s.known.Store(Elasticsearch)
	ctx := leading(b)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := s.Write(ctx, actions); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/1000, "ns/event")
	b.ReportMetric(float64(server.got)/float64(b.N)/1000, "sent-B/event")
}
