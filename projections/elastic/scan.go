package elastic

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"

	"github.com/elastic/go-elasticsearch/v8/esapi"
)

// ErrOtherIndex means that a scan cannot go on: the name leads to another index than before, or the index was restored.
var ErrOtherIndex = errors.New("the index is another one than when its documents were first read; where nobody has changed it, see with `weft doctor` whether ELASTIC_URL leads to two clusters")

// position is how far a scan has come in an index, in the order of _seq_no: a shard numbers its writes, and a document has
// the number of its last one.
type position struct {
	index     string // its uuid
	next, end int64  // the numbers that are left, without end
	width     int64  // how many of them one page takes
}

const positionForm = "%d-%d/%d of %s"

func (p position) String() string {
	return fmt.Sprintf(positionForm, p.next, p.end, p.width, p.index)
}

func parsePosition(text string) (p position, err error) {
	if _, err := fmt.Sscanf(text, positionForm, &p.next, &p.end, &p.width, &p.index); err != nil || p.width < 1 {
		return p, fmt.Errorf("%w: %q", ErrOtherIndex, text)
	}
	return p, nil
}

// Scan returns a page of documents, without their content, and the position of the page after it: [MaxPage] of them at most,
// or none. A scan begins at the empty position, and has ended where the next one is empty, with an empty page. After an error
// the same page may be read again. A position is good in other processes as well, for as long as the name leads to the
// index; some seconds later the error is [ErrOtherIndex]. Each document comes once, but for those written after the scan
// began, which may not come.
func (s *Sink) Scan(ctx context.Context, from string) (page []Document, next string, err error) {
	name, index, err := s.read(ctx)
	if err != nil {
		return nil, "", err
	}
	at := position{index: index, width: MaxPage}
	if from == "" {
		at.end, err = s.lastWrite(ctx, name)
	} else {
		at, err = parsePosition(from)
	}
	switch {
	case err != nil:
		return nil, "", err
	case at.index != index:
		return nil, "", ErrOtherIndex
	case at.next >= at.end:
		return nil, "", nil
	}
	var refused error
	for size := MaxPage + 1; ; {
		to := at.end
		if at.width < at.end-at.next {
			to = at.next + at.width
		}
		query := fmt.Sprintf(`{"version":true,"_source":false,"track_total_hits":false,"sort":["_doc"],"size":%d,"query":{"range":{"_seq_no":{"gte":%d,"lt":%d}}}}`, size, at.next, to)
		page, _, err = s.hits(ctx, s.maxAnswer, []byte(query), name)
		switch {
		case errors.Is(err, ErrTooLarge) && size > 1:
			size, refused = size/2, err
		case err != nil:
			return nil, "", err
		case len(page) == size && at.width > 1: // there may be more
			at.width /= 2
		case len(page) == size: // each shard has one
			return nil, "", refused
		default:
			at.next = to
			if len(page) < size/2 && at.width < math.MaxInt64/2 { // many were written again since, with a higher number
				at.width *= 2
			}
			return page, at.String(), nil
		}
	}
}

// lastWrite returns a number above those of all documents that searches see.
func (s *Sink) lastWrite(ctx context.Context, index string) (int64, error) {
	query := []byte(`{"_source":false,"track_total_hits":false,"size":1,"sort":[{"_seq_no":{"order":"desc","unmapped_type":"long"}}]}`)
	_, sort, err := s.hits(ctx, maxPlain, query, index)
	if err != nil || sort == nil {
		return 0, err
	}
	var last []int64
	if err := json.Unmarshal(sort, &last); err != nil || len(last) != 1 {
		return 0, s.unreadable("search", fmt.Errorf("sort values %s", sort))
	}
	return last[0] + 1, nil
}

// hits runs a search, which fails when a shard does not answer, and returns the sort values of the last hit.
func (s *Sink) hits(ctx context.Context, limit int64, query []byte, index ...string) ([]Document, json.RawMessage, error) {
	answer, err := s.askUpTo(ctx, limit, "search", esapi.SearchRequest{
		Instrument: s.client.InstrumentationEnabled(), Index: index, Body: bytes.NewReader(query), AllowPartialSearchResults: new(bool),
	})
	if err != nil {
		return nil, nil, err
	}
	found, last, err := decodeHits(answer)
	if err != nil {
		return nil, nil, s.unreadable("search", err)
	}
	return found, last, nil
}
