package elastic

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"
)

// hitsByReflection is what decodeHits has to find.
func hitsByReflection(answer []byte) (found []Document, last json.RawMessage, err error) {
	var got struct {
		Hits struct {
			Hits []struct {
				Document
				Sort json.RawMessage `json:"sort"`
			} `json:"hits"`
		} `json:"hits"`
	}
	if err := json.Unmarshal(answer, &got); err != nil {
		return nil, nil, err
	}
	for _, h := range got.Hits.Hits {
		found, last = append(found, h.Document), h.Sort
	}
	return found, last, nil
}

const someHits = `{"took":3,"timed_out":false,"_shards":{"total":1,"failed":0},"hits":{"max_score":null,"hits":[
 {"_index":"a","_id":"block:1","_version":17,"_score":null,"_source":{"text":"a \"b\" }]","n":[1,{"x":null}],"e":1.5e3},"sort":[0,"z"]},
 {"_index":"a","_id":"käse \u00e9\ud83d\ude00\/","_version":9007199254740993,"_routing":"t\t1","_ignored":["x"],"sort":[ 4294967298 ]} ]}}`

func TestHits(t *testing.T) {
	t.Parallel()
	for _, answer := range []string{
		someHits, `{"hits":{"hits":[]}}`, ` { "hits" : { "hits" : [ { "_id" : "1" , "_source" : { } , "sort" : [ 1 ] } ] } } `,
		`{"hits":{"hits":[{"_id":"1","_version":1,"_source":{"deep":` + strings.Repeat("[", 500) + strings.Repeat("]", 500) + `},"sort":[1]}]}}`,
	} {
		want, wantLast, err := hitsByReflection([]byte(answer))
		if err != nil {
			t.Fatal(err)
		}
		got, last, err := decodeHits([]byte(answer))
		if err != nil || !reflect.DeepEqual(got, want) || string(last) != string(wantLast) {
			t.Errorf("%.80s: got %+v, %s (%v); want %+v, %s", answer, got, last, err, want, wantLast)
		}
	}
}

func TestHitsOfABrokenAnswer(t *testing.T) {
	t.Parallel()
	for n := range len(someHits) {
		if found, _, err := decodeHits([]byte(someHits[:n])); err == nil {
			t.Errorf("cut after %d bytes: got %d documents and no error", n, len(found))
		}
	}
	for _, answer := range []string{someHits + "x", `{"hits":{"hits":[{"_id":1}]}}`, `{"hits":{"hits":[{"_version":"1"}]}}`, `{"hits":{"hits":[{"_version":1.5}]}}`, `{"hits":{"hits":{}}}`, `[]`} {
		if _, _, err := decodeHits([]byte(answer)); err == nil {
			t.Errorf("%.40s: got no error", answer)
		}
	}
}

// BenchmarkHits compares decodeHits with encoding/json on an answer of 1,000 documents. The
// comment at decodeHits quotes it.
func BenchmarkHits(b *testing.B) {
	var text strings.Builder
	text.WriteString(`{"took":9,"hits":{"max_score":null,"hits":[`)
	for i := range 1000 {
		if i > 0 {
			text.WriteByte(',')
		}
		fmt.Fprintf(&text, `{"_index":"books-v1","_id":"block:7b0e4c52-8f55-4d4e-9a3e-%012d","_version":%d,"_score":null,"_source":{"entity_type":"block",`+
			`"entity_id":"7b0e4c52-8f55-4d4e-9a3e-%012d","library_id":"0b0e4c52-8f55-4d4e-9a3e-00000000002a","text":%q,"rank_score":0.5,`+
			`"created_at":"2026-01-01T00:00:00Z","updated_at":"2026-01-01T00:00:00Z","event_version":%d},"sort":[%d]}`, i, i, i, strings.Repeat("word1234 ", 22), i, i)
	}
	text.WriteString(`]}}`)
	answer := []byte(text.String())
	for _, c := range []struct {
		name   string
		decode func([]byte) ([]Document, json.RawMessage, error)
	}{{"Own", decodeHits}, {"EncodingJSON", hitsByReflection}} {
		b.Run(c.name, func(b *testing.B) {
			b.SetBytes(int64(len(answer)))
			b.ReportAllocs()
			for b.Loop() {
				if found, _, err := c.decode(answer); err != nil || len(found) != 1000 {
					b.Fatalf("got %d documents (%v), want 1000", len(found), err)
				}
			}
		})
	}
}
