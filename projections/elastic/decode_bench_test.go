package elastic

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"testing"
)

// BenchmarkDecode compares decode with encoding/json on a filtered answer for 1,000 documents.
// The comment at decode quotes it.
func BenchmarkDecode(b *testing.B) {
	var text bytes.Buffer
	text.WriteString(`{"items":[`)
	for i := range 1000 {
		if i > 0 {
			text.WriteByte(',')
		}
		fmt.Fprintf(&text, `{"index":{"_id":"block:7b0e4c52-8f55-4d4e-9a3e-%012d","result":"updated","status":200}}`, i)
	}
	text.WriteString(`]}`)
	sum := 0
	for _, c := range []struct {
		name   string
		decode func([]byte, func(int, *item) error) (int, error)
	}{{"Own", decode}, {"EncodingJSON", decodeByReflection}} {
		b.Run(c.name, func(b *testing.B) {
			b.SetBytes(int64(text.Len()))
			b.ReportAllocs()
			for b.Loop() {
				n, err := c.decode(text.Bytes(), func(_ int, it *item) error { sum += it.status + len(it.id); return nil })
				if err != nil || n != 1000 {
					b.Fatalf("got %d items (%v), want 1000", n, err)
				}
			}
		})
	}
}

// decodeByReflection is decode as encoding/json does it.
func decodeByReflection(data []byte, visit func(int, *item) error) (int, error) {
	type fields struct {
		ID     *string         `json:"_id"`
		Status int             `json:"status"`
		Result string          `json:"result"`
		Error  json.RawMessage `json:"error"`
	}
	var answer struct {
		Items []struct {
			Index  *fields `json:"index"`
			Delete *fields `json:"delete"`
		} `json:"items"`
	}
	if err := json.Unmarshal(data, &answer); err != nil {
		return 0, err
	}
	for i, it := range answer.Items {
		f, del := it.Index, false
		if f == nil {
			f, del = it.Delete, true
		}
		if f == nil || f.ID == nil || it.Index != nil && it.Delete != nil {
			return i, errors.New("no item")
		}
		if err := visit(i, &item{del: del, id: []byte(*f.ID), status: f.Status, result: []byte(f.Result), err: f.Error}); err != nil {
			return i, err
		}
	}
	return len(answer.Items), nil
}
