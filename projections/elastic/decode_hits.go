package elastic

import (
	"encoding/json"
	"strconv"
)

// decodeHits returns the documents that a search has found, and the sort values of the last.
// Contents and sort values point into the answer. It accepts only complete, valid JSON.
//
// encoding/json takes 5.7 µs for a document with 200 bytes of text, decodeHits 0.9 µs
// (BenchmarkHits): the difference is an eighth of what a comparison spends on a row.
func decodeHits(answer []byte) (found []Document, last json.RawMessage, err error) {
	c := cursor{data: answer}
	err = c.object(func(key []byte) error {
		if string(key) != "hits" {
			return c.skip(0)
		}
		return c.object(func(key []byte) error {
			if string(key) != "hits" {
				return c.skip(0)
			}
			return c.array(func() error {
				var d Document
				if err := c.object(func(key []byte) error { return c.hitField(&d, &last, key) }); err != nil {
					return err
				}
				found = append(found, d)
				return nil
			})
		})
	})
	if err != nil {
		return nil, nil, err
	}
	if c.space(); c.pos != len(answer) {
		return nil, nil, errSyntax
	}
	return found, last, nil
}

func (c *cursor) hitField(d *Document, sort *json.RawMessage, key []byte) (err error) {
	var text []byte
	switch string(key) {
	case "_id":
		text, err = c.str()
		d.ID = string(text)
	case "_routing":
		text, err = c.str()
		d.Routing = string(text)
	case "_version":
		if text, err = c.raw(); err == nil {
			d.Version, err = strconv.ParseInt(string(text), 10, 64)
		}
	case "_source":
		d.Source, err = c.raw()
	case "sort":
		*sort, err = c.raw()
	default:
		err = c.skip(0)
	}
	return err
}

// raw returns the text of the next value.
func (c *cursor) raw() ([]byte, error) {
	c.space()
	start := c.pos
	if err := c.skip(0); err != nil {
		return nil, err
	}
	return c.data[start:c.pos:c.pos], nil
}
