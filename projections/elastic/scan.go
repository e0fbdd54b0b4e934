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

// ErrPlace means that the place of a scan is one of an index to which the name leads no more.
var ErrPlace = errors.New("the index is another one than before")

// place is how far a scan has come in an index, in the order of _seq_no: a shard numbers its writes, and a document has
// the number of its last one.
type place struct {
	uuid      string // of the index
	next, end int64  // the numbers that are left, without end
	width     int64  // how many of them one page takes
}

const placeForm = "%d-%d/%d of %s"

func (p place) String() string { return fmt.Sprintf(placeForm, p.next, p.end, p.width, p.uuid) }

func parsePlace(text string) (p place, err error) {
	if _, err := fmt.Sscanf(text, placeForm, &p.next, &p.end, &p.width, &p.uuid); err != nil || p.width < 1 {
		return p, fmt.Errorf("%q is no place of a scan", text)
	}
	return p, nil
}

// Scan returns a page of documents, without their content, and the place of the page after it. A scan begins at the empty
// place and has ended where there is no next one; a place is good for as long as the index, also after a restart of either
// side, and for another one the error is [ErrPlace]. Each document comes once, except that one which is written after the begin
// of the scan may be on no page. A page may be empty, and has [MaxPage] documents at most.
func (s *Sink) Scan(ctx context.Context, from string) (page []Document, next string, err error) {
	index, uuid, err := s.read(ctx)
	if err != nil {
		return nil, "", err
	}
	at := place{uuid: uuid, width: MaxPage}
	if from == "" {
		at.end, err = s.lastWrite(ctx, index)
	} else if at, err = parsePlace(from); err == nil && at.uuid != uuid {
		err = ErrPlace
	}
	if err != nil || at.next >= at.end {
		return nil, "", err
	}
	for size := MaxPage + 1; ; {
		to := at.end
		if at.width < at.end-at.next {
			to = at.next + at.width
		}
		query := fmt.Sprintf(`{"version":true,"_source":false,"track_total_hits":false,"sort":["_doc"],"size":%d,"query":{"range":{"_seq_no":{"gte":%d,"lt":%d}}}}`, size, at.next, to)
		page, _, err = s.hits(ctx, s.maxAnswer, []byte(query), index)
		tooLarge := errors.Is(err, ErrTooLarge) && size > 1
		switch {
		case tooLarge:
			size /= 2
		case err != nil:
			return nil, "", err
		}
		if tooLarge || len(page) == size && at.width > 1 { // there may be more
			at.width = max(at.width/2, 1)
			continue
		}
		at.next = to
		if len(page) < MaxPage/2 && at.width < math.MaxInt64/2 { // many were written again since, with a higher number
			at.width *= 2
		}
		return page, at.String(), nil
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
