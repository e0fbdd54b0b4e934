package elastic

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"

	"github.com/elastic/go-elasticsearch/v8/esapi"
)

// ErrTooLarge means that a request or an answer is too large. So is an answer that does not end.
var ErrTooLarge = errors.New("request or answer is too large")

// ErrWindow means that an index lets fewer hits be asked for than a search wants. It is an [ErrTooLarge].
var ErrWindow = fmt.Errorf("%w for the index, whose index.max_result_window is low", ErrTooLarge)

// ErrUnreadable means that an answer is not what was asked for, as one that a proxy has cut or changed.
var ErrUnreadable = errors.New("the answer cannot be read")

const lookThere = "look at that server, or at the proxy that ELASTIC_URL leads to"

// How many bytes of an answer are read.
const (
	maxDocuments = 64 << 20 // with documents; twice as much of a single one, which may have 100 MB
	maxPlain     = 16 << 20 // without
	maxRefusal   = 1 << 20  // other than 2xx, whose rest is left
)

// maxResults bounds the answer to n actions with size bytes. Filtered it takes about 80 bytes for each; an error
// may name all roles of a user, or quote a document twice.
func maxResults(n, size int) int64 { return min(1<<20+int64(n)*4<<10+int64(size)*4, maxDocuments) }

// answer holds one answer's body.
type answer struct{ buf []byte }

func (s *Sink) putAnswer(a *answer) {
	if cap(a.buf) <= maxPooled {
		s.answers.Put(a)
	}
}

// readAnswer reads the body of an answer into the room of buf: all of it, or the beginning of a refusal.
func (s *Sink) readAnswer(res *esapi.Response, buf []byte, limit int64) ([]byte, error) {
	if res.IsError() {
		return ReadBody(buf, nil, io.LimitReader(res.Body, maxRefusal), maxRefusal)
	}
	buf, err := ReadBody(buf, res.Header, res.Body, limit)
	if errors.Is(err, ErrTooLarge) {
		err = fmt.Errorf("%w, from Elasticsearch at %s; %s", err, s.host(), lookThere)
	}
	return buf, err
}

// answerOf returns the body of an answer, nil where it broke off, and closes it.
func (s *Sink) answerOf(res *esapi.Response, limit int64) ([]byte, error) {
	defer func() { _ = res.Body.Close() }()
	body, err := s.readAnswer(res, nil, limit)
	if err != nil {
		return nil, err
	}
	return body, nil
}

// unmarshal reads an answer into a value.
func (s *Sink) unmarshal(what string, answer []byte, into any) error {
	if err := json.Unmarshal(answer, into); err != nil {
		return s.unreadable(what, err)
	}
	return nil
}

// unreadable returns the error of an answer that is not what was asked for. Of one that is too large it says that.
func (s *Sink) unreadable(what string, err error) error {
	if errors.Is(err, ErrTooLarge) {
		return fmt.Errorf("%s: %w", what, err)
	}
	return fmt.Errorf("%s: %w: %w; it is from Elasticsearch at %s: %s", what, ErrUnreadable, err, s.host(), lookThere)
}

func miscounted(results, documents int) error {
	return fmt.Errorf("it has results for %d documents, and %d were asked for", results, documents)
}

// minRead is the room in bytes for an answer of unknown size.
const minRead = 512

// ReadBody reads the body of an answer into the room of buf, or into more. One of more than limit bytes is an [ErrTooLarge].
func ReadBody(buf []byte, header http.Header, body io.Reader, limit int64) ([]byte, error) {
	buf = buf[:0]
	tooLarge := func() error { return fmt.Errorf("%w: more than %d bytes, or without an end", ErrTooLarge, limit) }
	room := int64(minRead)
	if size, err := strconv.ParseInt(header.Get("Content-Length"), 10, 64); err == nil {
		if size > limit {
			return buf, tooLarge()
		}
		room = size + 1 // where the last byte fills buf, the end is yet to be read
	}
	for {
		if free := int64(cap(buf) - len(buf)); free < room {
			buf = append(make([]byte, 0, max(int64(len(buf))+room, min(2*int64(cap(buf)), limit+1))), buf...)
		}
		room = 1
		n, err := body.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		switch {
		case int64(len(buf)) > limit:
			return buf, tooLarge()
		case errors.Is(err, io.EOF):
			return buf, nil
		case err != nil:
			return buf, err
		}
	}
}
