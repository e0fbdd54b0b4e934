package elastic

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"strconv"
	"sync"
	"unicode/utf8"
)

// Action is one document to write or to remove.
type Action struct {
	ID      string // document id: 1 to MaxIDBytes bytes
	Routing string // decides the shard; empty for the id
	Version int64  // external version, 0 or more
	Delete  bool
	Body    []byte // one JSON object without newline; unused with Delete

	// Held is the version of the document in Elasticsearch. Write sets it when the action was
	// refused for its version; it is 0 when the answer does not name one.
	Held int64
}

// maxPooled is the size in bytes above which a buffer is left to the garbage
// collector: one 20 MB document must not stay in memory for good.
const maxPooled = 8 << 20

const hexDigits = "0123456789abcdef"

// AppendString appends s to dst as a JSON string. Bytes that are not valid UTF-8
// become U+FFFD.
func AppendString[S ~string | ~[]byte](dst []byte, s S) []byte {
	dst = append(dst, '"')
	start := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c >= 0x20 && c != '"' && c != '\\' && c < utf8.RuneSelf {
			i++
			continue
		}
		if c >= utf8.RuneSelf {
			r, n := decodeRune(s[i:])
			if r != utf8.RuneError || n > 1 {
				i += n
				continue
			}
			dst = append(dst, s[start:i]...)
			dst = append(dst, "\ufffd"...)
			i += n
			start = i
			continue
		}
		dst = append(dst, s[start:i]...)
		switch c {
		case '"', '\\':
			dst = append(dst, '\\', c)
		case '\n':
			dst = append(dst, '\\', 'n')
		case '\r':
			dst = append(dst, '\\', 'r')
		case '\t':
			dst = append(dst, '\\', 't')
		default:
			dst = append(dst, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&0xf])
		}
		i++
		start = i
	}
	dst = append(dst, s[start:]...)
	return append(dst, '"')
}

func decodeRune[S ~string | ~[]byte](s S) (rune, int) {
	var b [utf8.UTFMax]byte
	return utf8.DecodeRune(b[:copy(b[:], s)])
}

// appendAction appends the line or the two lines of a.
func appendAction(dst []byte, a *Action) []byte {
	if a.Delete {
		dst = append(dst, `{"delete":{"_id":`...)
	} else {
		dst = append(dst, `{"index":{"_id":`...)
	}
	dst = AppendString(dst, a.ID)
	if a.Routing != "" {
		dst = append(dst, `,"routing":`...)
		dst = AppendString(dst, a.Routing)
	}
	dst = append(dst, `,"version":`...)
	dst = strconv.AppendInt(dst, a.Version, 10)
	dst = append(dst, `,"version_type":"external_gte"}}`...)
	dst = append(dst, '\n')
	if !a.Delete {
		dst = append(dst, a.Body...)
		dst = append(dst, '\n')
	}
	return dst
}

// lineSize estimates the bytes that appendAction appends for a.
func lineSize(a *Action) int {
	const frame = 90
	n := frame + len(a.ID) + len(a.Routing)
	if !a.Delete {
		n += len(a.Body)
	}
	return n
}

// check returns why a cannot be part of any request, or "".
func (a *Action) check() string {
	switch {
	case a.ID == "":
		return "document id is empty"
	case len(a.ID) > MaxIDBytes:
		return "document id has " + strconv.Itoa(len(a.ID)) + " bytes, Elasticsearch takes at most " + strconv.Itoa(MaxIDBytes)
	case !utf8.ValidString(a.ID), !utf8.ValidString(a.Routing):
		return "document id or routing is not valid UTF-8"
	case a.Version < 0:
		return "version " + strconv.FormatInt(a.Version, 10) + " is negative"
	case a.Delete:
		return ""
	case len(a.Body) == 0:
		return "document has no body"
	case bytes.IndexByte(a.Body, '\n') >= 0:
		return "document body holds a newline"
	default:
		return ""
	}
}

// payload is the body of one request. An HTTP transport may go on reading a body
// after it has returned an answer or an error (golang/go#51907), so readers go
// through the payload and get an error once it is detached; only then is the
// buffer used again.
type payload struct {
	mu   sync.Mutex
	buf  []byte
	gen  uint64
	sent int // most bytes any reader has handed out

	zip   *gzip.Writer
	spare []byte // of compress
}

// compress replaces the payload by its gzip form. The client's own compression would give its buffer
// to the next request while a transport may still read it, and hide how much was sent.
func (p *payload) compress() {
	if p.zip == nil {
		p.zip, _ = gzip.NewWriterLevel(nil, gzip.BestSpeed) // the level is valid
	}
	into := bytes.NewBuffer(p.spare[:0])
	p.zip.Reset(into)
	_, _ = p.zip.Write(p.buf) // memory takes everything
	_ = p.zip.Close()
	p.buf, p.spare = into.Bytes(), p.buf
}

var errDetached = errors.New("elastic: request body is no longer in use")

// reader returns a new reader over the whole payload.
func (p *payload) reader() io.ReadCloser {
	p.mu.Lock()
	defer p.mu.Unlock()
	return &payloadReader{p: p, gen: p.gen}
}

// detach cuts off all readers handed out so far.
func (p *payload) detach() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.gen++
	p.sent = 0
	if cap(p.buf) > maxPooled || cap(p.spare) > maxPooled {
		p.buf, p.spare = nil, nil
	}
	p.buf = p.buf[:0]
}

// read returns how many bytes the transport has read.
func (p *payload) read() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.sent
}

type payloadReader struct {
	p   *payload
	gen uint64
	off int
}

// Read implements io.Reader. It has no WriterTo on purpose: the copy happens under
// the lock.
func (r *payloadReader) Read(b []byte) (int, error) {
	r.p.mu.Lock()
	defer r.p.mu.Unlock()
	if r.gen != r.p.gen {
		return 0, errDetached
	}
	if r.off >= len(r.p.buf) {
		return 0, io.EOF
	}
	n := copy(b, r.p.buf[r.off:])
	r.off += n
	r.p.sent = max(r.p.sent, r.off)
	return n, nil
}

// Close implements io.Closer.
func (r *payloadReader) Close() error { return nil }
