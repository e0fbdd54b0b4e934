package elastic

import (
	"net/http"
	"strconv"
	"strings"

	"github.com/samuelhu324-dev/weft/outbox"
)

// A proxy that injects 429s in a drill says so in the headers of the answer. They are
// copied to the span of the request, and to the spans of the events that this answer
// threw back with 429, so that an injected fault can be told from a real one. Nothing
// else depends on them, and an Elasticsearch sends none.
//
//	header                         attribute                          type
//	Wordloom-Labs-Es-429-Injected  wordloom.labs.es_429.injected      bool
//	Wordloom-Labs-Es-429-Mode      wordloom.labs.es_429.mode          string: every_n, ratio
//	Wordloom-Labs-Es-429-Ratio     wordloom.labs.es_429.ratio         float
//	Wordloom-Labs-Es-429-Every-N   wordloom.labs.es_429.every_n       int
//	Wordloom-Labs-Es-429-Ops       wordloom.labs.es_429.ops           string: upsert,delete
//	Wordloom-Labs-Es-429-Seed      wordloom.labs.es_429.seed          int
//	Wordloom-Labs-Es-429-Counter   wordloom.labs.es_429.counter       int: requests injected so far
const (
	Lab429Injected = lab429 + "Injected"
	Lab429Mode     = lab429 + "Mode"
	Lab429Ratio    = lab429 + "Ratio"
	Lab429EveryN   = lab429 + "Every-N"
	Lab429Ops      = lab429 + "Ops"
	Lab429Seed     = lab429 + "Seed"
	Lab429Counter  = lab429 + "Counter"

	lab429      = "Wordloom-Labs-Es-429-"
	lab429Space = "wordloom.labs.es_429."
)

const maxMark = 64 // bytes of a text

// marksOf returns the marks in header; nil when there are none. What does not parse
// is left out.
func marksOf(header http.Header) outbox.Marks {
	if header.Get(Lab429Mode) == "" && header.Get(Lab429Injected) == "" {
		return nil
	}
	marks := outbox.Marks{}
	put := func(name string, v any, err error) {
		if err == nil {
			marks[lab429Space+strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(name, lab429)), "-", "_")] = v
		}
	}
	for _, name := range []string{Lab429Injected, Lab429Mode, Lab429Ratio, Lab429EveryN, Lab429Ops, Lab429Seed, Lab429Counter} {
		text := header.Get(name)
		if text == "" {
			continue
		}
		switch name {
		case Lab429Injected:
			v, err := strconv.ParseBool(text)
			put(name, v, err)
		case Lab429Ratio:
			v, err := strconv.ParseFloat(text, 64)
			put(name, v, err)
		case Lab429EveryN, Lab429Seed, Lab429Counter:
			v, err := strconv.ParseInt(text, 10, 64)
			put(name, v, err)
		default:
			put(name, text[:min(len(text), maxMark)], nil)
		}
	}
	return marks
}
