package proxy

import (
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// says is what Elasticsearch says with a 429 of a request or an item that it refuses.
func (k Kind) says() (kind, reason string) {
	switch k {
	case DiskFull, DiskFullItems:
		return "cluster_block_exception",
			"index [docs] blocked by: [TOO_MANY_REQUESTS/12/disk usage exceeded flood-stage watermark, index has read-only-allow-delete block];"
	default:
		return "es_rejected_execution_exception",
			"rejected execution of coordinating operation [coordinating_and_primary_bytes=0, replica_bytes=0, all_bytes=0, coordinating_operation_bytes=1, max_coordinating_and_primary_bytes=0]"
	}
}

// refusal is the answer to a whole request.
func refusal(f Fault) *reply {
	if f.Kind == TooLarge { // of a proxy, which knows nothing of Elasticsearch
		return &reply{http.StatusRequestEntityTooLarge, http.Header{"Content-Type": {"text/html"}}, []byte("<html><h1>413 Request Entity Too Large</h1></html>\n")}
	}
	kind, reason := f.Kind.says()
	cause := map[string]any{"type": kind, "reason": reason}
	header := productHeader()
	if f.RetryAfter > 0 {
		header.Set("Retry-After", strconv.Itoa(int(f.RetryAfter.Seconds())))
	}
	return &reply{http.StatusTooManyRequests, header, marshal(map[string]any{
		"error": map[string]any{"root_cause": []any{cause}, "type": kind, "reason": reason}, "status": http.StatusTooManyRequests,
	})}
}

func productHeader() http.Header {
	return http.Header{"Content-Type": {"application/json"}, "X-Elastic-Product": {"Elasticsearch"}}
}

// refuseItem makes the tap answer item i itself, with an error.
func (e *exchange) refuseItem(i, status int, kind, reason string) {
	index, _, _ := strings.Cut(strings.TrimPrefix(e.r.URL.Path, "/"), "/")
	e.kept[i] = result{e.lines[i].op: {
		"_index": marshal(index), "_id": marshal(e.lines[i].id), "status": marshal(status),
		"error": marshal(map[string]string{"type": kind, "reason": reason}),
	}}
}

// marshal is for values that always have an encoding.
func marshal(v any) json.RawMessage {
	b, _ := json.Marshal(v)
	return b
}

// corrupt returns wrong items.
func (s *strike) corrupt(results []result) []result {
	at := s.random.IntN(len(results))
	if s.Kind == MissingItems {
		return slices.Delete(slices.Clone(results), at, at+1)
	}
	out := slices.Clone(results)
	for other := range out {
		if string(idOf(out[other])) != string(idOf(out[at])) {
			out[at], out[other] = withID(out[at], idOf(out[other])), withID(out[other], idOf(out[at]))
			return out
		}
	}
	out[at] = withID(out[at], marshal("another")) // there is nothing to swap it with
	return out
}

func idOf(r result) json.RawMessage {
	for _, item := range r {
		return item["_id"]
	}
	return nil
}

func withID(r result, id json.RawMessage) result {
	out := result{}
	for op, item := range r {
		out[op] = maps.Clone(item)
		out[op]["_id"] = id
	}
	return out
}
