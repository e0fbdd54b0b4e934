package elastic

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/iotest"

	"github.com/samuelhu324-dev/weft/outbox"
)

// endless writes white space, which JSON allows anywhere, until nobody reads it any more, and counts it.
func endless(w io.Writer, sent *atomic.Int64) {
	space := []byte(strings.Repeat(" ", 64<<10))
	for {
		n, err := w.Write(space)
		sent.Add(int64(n))
		if err != nil {
			return
		}
	}
}

// A server, or a proxy, that sends without an end costs the memory of a rightful answer, and is named.
func TestAnswerWithoutAnEnd(t *testing.T) {
	t.Parallel()
	const socket = 16 << 20 // that are on the way when weft stops reading
	s, srv, _ := fakeSink(t, nil)
	where := "without an end, from Elasticsearch at " + strings.TrimPrefix(srv.URL, "http://") + "; look at that server, or at the proxy"
	for _, c := range []struct {
		status int
		reason outbox.Reason
		want   string
		limit  int64
	}{
		{http.StatusOK, outbox.ReasonESRequest, where, maxResults(1, 1<<10)},
		{http.StatusInternalServerError, outbox.ReasonES5xx, "status 500", maxRefusal},
	} {
		var sent atomic.Int64
		ended := make(chan struct{})
		srv.Script(func(w http.ResponseWriter, _ *http.Request, _ func() []byte) {
			defer close(ended)
			w.WriteHeader(c.status)
			endless(w, &sent)
		})
		_, err := s.Write(leading(t), docs(1))
		<-ended
		f, ok := errors.AsType[*outbox.Fault](err)
		if !ok || f.Reason != c.reason || !strings.Contains(f.Error(), c.want) {
			t.Errorf("status %d: got %v, want reason %s and %q", c.status, err, c.reason, c.want)
		}
		if n := sent.Load(); n > c.limit+socket {
			t.Errorf("status %d: weft took %d bytes for one document, want %d at most, and what is on the way", c.status, n, c.limit)
		}
	}
}

func TestReadBody(t *testing.T) {
	t.Parallel()
	text := strings.Repeat("0123456789", 1000)
	for _, length := range []string{"", "10000"} {
		header := http.Header{}
		if length != "" {
			header.Set("Content-Length", length)
		}
		for name, body := range map[string]io.Reader{"whole": strings.NewReader(text), "in small parts": iotest.OneByteReader(strings.NewReader(text)), "with its end": iotest.DataErrReader(strings.NewReader(text))} {
			got, err := ReadBody([]byte("of the answer before"), header, body, 10000)
			if string(got) != text || err != nil || cap(got) > 12<<10 {
				t.Errorf("length %q, %s: got %d bytes in a buffer of %d, %v", length, name, len(got), cap(got), err)
			}
		}
		read := strings.NewReader(text)
		if got, err := ReadBody(nil, header, read, 9999); !errors.Is(err, ErrTooLarge) || cap(got) > 12<<10 || length != "" && read.Len() != len(text) {
			t.Errorf("length %q, beyond the limit: got a buffer of %d, %v, want %v", length, cap(got), err, ErrTooLarge)
		}
	}
	if _, err := ReadBody(nil, nil, iotest.ErrReader(io.ErrUnexpectedEOF), 10); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("a broken answer: got %v", err)
	}
}
