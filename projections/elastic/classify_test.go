package elastic

import (
	"bytes"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/samuelhu324-dev/weft/outbox"
	"github.com/samuelhu324-dev/weft/projections/elastic/elastictest"
)

func TestClassifyItem(t *testing.T) {
	t.Parallel()
	const (
		flood = `{"type":"cluster_block_exception","reason":"index [i] blocked by: [TOO_MANY_REQUESTS/12/disk usage exceeded flood-stage watermark, index has read-only-allow-delete block];"}`
		old   = `{"type":"cluster_block_exception","reason":"index [i] blocked by: [FORBIDDEN/12/index read-only / allow delete (api)];"}`
		both  = `{"type":"cluster_block_exception","reason":"index [i] blocked by: [FORBIDDEN/8/index write (api)]; [TOO_MANY_REQUESTS/12/disk usage exceeded flood-stage watermark, index has read-only-allow-delete block];"}`
		write = `{"type":"cluster_block_exception","reason":"index [i] blocked by: [FORBIDDEN/8/index write (api)];"}`
		ro    = `{"type":"cluster_block_exception","reason":"index [i] blocked by: [FORBIDDEN/5/index read-only (api)];"}`
		state = `{"type":"cluster_block_exception","reason":"blocked by: [SERVICE_UNAVAILABLE/1/state not recovered / initialized];"}`
	)
	e := func(kind string) string { return `{"type":"` + kind + `","reason":"r"}` }
	retry := func(r outbox.Reason) outbox.Outcome { return outbox.Outcome{Verdict: outbox.Retry, Reason: r} }
	failed := func(r outbox.Reason) outbox.Outcome { return outbox.Outcome{Verdict: outbox.Failed, Reason: r} }
	cases := []struct {
		name       string
		status     int
		del        bool
		result     string
		err        string
		want       outbox.Outcome
		class      string
		shared     bool
		unexpected bool
	}{
		{"Created", 201, false, "created", "", outbox.OK(), "none", false, false},
		{"Updated", 200, false, "updated", "", outbox.OK(), "none", false, false},
		{"Deleted", 200, true, "deleted", "", outbox.OK(), "none", false, false},
		{"DroppedByAPipeline", 200, false, "noop", "", failed(outbox.ReasonES4xx), "4xx", false, false},
		{"FailedByAPipeline", 500, false, "", e("fail_processor_exception"), failed(outbox.ReasonES4xx), "4xx", false, false},
		{"DeleteOfNothing", 404, true, "not_found", "", outbox.NoOp(outbox.NoopES404), "none", false, false},
		{"DeleteWithoutResult", 404, true, "", "", retry(outbox.ReasonESOther), "other", false, true},
		{"IndexNotFoundItem", 404, false, "not_found", "", retry(outbox.ReasonESOther), "other", false, true},
		{"Conflict", 409, false, "", e("version_conflict_engine_exception"), outbox.NoOp(outbox.NoopAlreadyApplied), "conflict", false, false},
		{"DeleteConflict", 409, true, "", e("version_conflict_engine_exception"), outbox.NoOp(outbox.NoopAlreadyApplied), "conflict", false, false},
		{"OtherConflict", 409, false, "", e("some_exception"), retry(outbox.ReasonESOther), "other", false, true},
		{"IndexMissing", 404, false, "", e("index_not_found_exception"), retry(outbox.ReasonESRequest), "index", true, false},
		{"IndexMissingOnDelete", 404, true, "", e("index_not_found_exception"), retry(outbox.ReasonESRequest), "index", true, false},
		{"IndexClosed", 400, false, "", e("index_closed_exception"), retry(outbox.ReasonESRequest), "index", true, false},
		{"NoWriteIndex", 400, false, "", `{"type":"illegal_argument_exception","reason":"no write index is defined for alias [a]"}`, retry(outbox.ReasonESRequest), "index", true, false},
		{"NoPipeline", 400, false, "", `{"type":"illegal_argument_exception","reason":"pipeline with id [p] does not exist"}`, retry(outbox.ReasonESRequest), "index", true, false},
		{"OtherArgument", 400, false, "", e("illegal_argument_exception"), failed(outbox.ReasonES4xx), "4xx", false, false},
		{"FloodStage", 429, false, "", flood, retry(outbox.ReasonES429), "429", true, false},
		{"FloodStageOnDelete", 403, true, "", flood, retry(outbox.ReasonES429), "429", true, false},
		{"FloodStageOfOldServers", 403, false, "", old, retry(outbox.ReasonES429), "429", true, false},
		{"FloodStageAndWriteBlock", 403, false, "", both, retry(outbox.ReasonES429), "429", true, false},
		{"WriteBlock", 403, false, "", write, failed(outbox.ReasonES4xx), "4xx", false, false},
		{"ReadOnly", 403, false, "", ro, retry(outbox.ReasonESRequest), "index", true, false},
		{"ClusterNotReady", 503, false, "", state, retry(outbox.ReasonES5xx), "5xx", true, false},
		{"NotAllowed", 403, false, "", e("security_exception"), retry(outbox.ReasonESRequest), "index", true, false},
		{"NotKnown", 401, false, "", e("x"), retry(outbox.ReasonESRequest), "index", true, false},
		{"Throttled", 429, false, "", e("es_rejected_execution_exception"), retry(outbox.ReasonES429), "429", false, false},
		{"ServerFault", 500, false, "", e("x"), retry(outbox.ReasonES5xx), "5xx", false, false},
		{"NoShard", 503, false, "", e("unavailable_shards_exception"), retry(outbox.ReasonES5xx), "5xx", false, false},
		{"Timeout", 408, false, "", e("x"), retry(outbox.ReasonESTimeout), "other", false, false},
		{"Mapping", 400, false, "", e("document_parsing_exception"), failed(outbox.ReasonES4xx), "4xx", false, false},
		{"Strict", 400, false, "", e("strict_dynamic_mapping_exception"), failed(outbox.ReasonES4xx), "4xx", false, false},
		{"OtherForbidden", 403, false, "", e("x"), failed(outbox.ReasonES4xx), "4xx", false, false},
		{"Redirect", 302, false, "", "", retry(outbox.ReasonESOther), "other", false, true},
		{"SuccessWithError", 200, false, "updated", e("x"), retry(outbox.ReasonESOther), "other", false, true},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			it := item{del: c.del, status: c.status, result: []byte(c.result)}
			if c.err != "" {
				it.err = []byte(c.err)
			}
			got := classifyItem(&it)
			if d := cmp.Diff(c.want, got.outcome, noDetail); d != "" {
				t.Errorf("outcome (-want +got):\n%s", d)
			}
			if got.class.String() != c.class || got.shared != c.shared || got.unexpected != c.unexpected {
				t.Errorf("got class=%s shared=%t unexpected=%t, want class=%s shared=%t unexpected=%t", got.class, got.shared, got.unexpected, c.class, c.shared, c.unexpected)
			}
			if got.outcome.Verdict != outbox.Done && got.outcome.Detail == "" {
				t.Errorf("detail: got none")
			}
		})
	}
}

func TestDetailRepeatsNothingOfTheDocument(t *testing.T) {
	t.Parallel()
	for name, raw := range map[string]string{
		"Preview":   `{"type":"t","reason":"failed to parse field [created_at] of type [date] in document with id 'c'. Preview of field's value: 'secret'","caused_by":{"type":"illegal_argument_exception","reason":"failed to parse date field [my] secret] with format [strict_date]","caused_by":{"type":"date_time_parse_exception","reason":"Failed to parse with all enclosed parsers"}}}`,
		"Immense":   `{"type":"t","reason":"Document contains at least one immense term in field=\"text\". The prefix of the first immense term is: '[115, 101] secret'"}`,
		"Number":    `{"type":"t","reason":"r","caused_by":{"type":"u","reason":"For input string: \"secret\""}}`,
		"Source":    `{"type":"t","reason":"Unexpected character at [Source: (byte[])\"{secret\"; line: 1]"}`,
		"Unclosed":  `{"type":"t","reason":"r","caused_by":{"type":"u","reason":"value 'secret"}}`,
		"Nested":    `{"type":"t","reason":"r","caused_by":{"type":"u","reason":"value 'it's secret' here"}}`,
		"Request":   `{"type":"unavailable_shards_exception","reason":"[x-v1][3] primary shard is not active Timeout: [10s], request: [BulkShardRequest [[x-v1][3]] containing [index {[x][885], source[{\"name\":\"secret\"}]}]]"}`,
		"Rejected":  `{"type":"es_rejected_execution_exception","reason":"rejected execution of processing of [7][indices:data/write/bulk[s][p]]: request: BulkShardRequest [[x-v1][3]] containing [index {[x][885], source[{\"name\":\"secret\"}]}], target allocation id: a"}`,
		"BigNumber": `{"type":"t","reason":"r","caused_by":{"type":"u","reason":"[1:9] Numeric value (secret) out of range of int (-2147483648 - 2147483647)"}}`,
		"Range":     `{"type":"t","reason":"r","caused_by":{"type":"u","reason":"min value (secret) is greater than max value (secret)"}}`,
		"Was":       `{"type":"t","reason":"[1:34] failed to parse: weight must be an integer, but was [secret]"}`,
		"Place":     `{"type":"t","reason":"[1:15] failed to parse: illegal longitude value [secret] for place"}`,
		"Shape":     `{"type":"t","reason":"r","caused_by":{"type":"u","reason":"invalid number found: secret"}}`,
		"Field":     `{"type":"t","reason":"[1:7] failed to parse: unknown field name [secret], must be one of [weight, input, contexts]"}`,
		"Feature":   `{"type":"t","reason":"[1:15] failed to parse: featureValue must be a positive normal float, got: secret for feature secret on field f"}`,
		"NotObject": `[1,2,"secret"]`,
	} {
		c := parseCause([]byte(raw))
		if got := c.detail(400); strings.Contains(got, "secret") || !strings.Contains(got, "status 400") {
			t.Errorf("%s: got %q", name, got)
		}
	}
	finite := parseCause([]byte(`{"type":"t","reason":"failed to parse field [rank_score] of type [float]","caused_by":{"type":"u","reason":"[float] supports only finite values, but got [Infinity]"}}`))
	if got, want := finite.detail(400), "status 400: t: failed to parse field [rank_score] of type [float]: u: [float] supports only finite values, but got [Infinity]"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	long := cause{Type: "t", Reason: strings.Repeat("é\x00\xff\n", 1000)}
	got := long.detail(400)
	if n := utf8.RuneCountInString(got); n != maxDetail || !utf8.ValidString(got) || strings.ContainsAny(got, "\x00\n") {
		t.Errorf("got %d characters, valid=%t: %q", n, utf8.ValidString(got), got)
	}
	whole := parseWhole([]byte(`{"error":{"root_cause":[{"type":"query_shard_exception","reason":"failed to create query"}],"type":"search_phase_execution_exception","reason":"all shards failed"}}`))
	if got, want := whole.detail(400), "status 400: search_phase_execution_exception: all shards failed: query_shard_exception: failed to create query"; got != want {
		t.Errorf("root cause: got %q, want %q", got, want)
	}
}

func TestRetryAfter(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for v, want := range map[string]time.Duration{
		"":            0,
		"0":           0,
		"12":          12 * time.Second,
		"-1":          0,
		"1.5":         0,
		"soon":        0,
		"99999999":    maxRetryAfter,
		"99999999999": 0,
		now.Add(9 * time.Second).Format(http.TimeFormat): 9 * time.Second,
		now.Add(-time.Hour).Format(http.TimeFormat):      0,
		now.Add(time.Hour).Format(http.TimeFormat):       maxRetryAfter,
	} {
		if got := retryAfter(v, now); got != want {
			t.Errorf("%q: got %s, want %s", v, got, want)
		}
	}
}

// A conflict with a document that is older than what was sent is a change that the document lacks, as behind a pipeline that
// sets _version: its event is not done.
func TestConflictWithAnOlderDocumentIsAFailure(t *testing.T) {
	t.Parallel()
	s, srv, _ := fakeSink(t, nil)
	held := int64(0)
	srv.FailItems(func(elastictest.Item) *elastictest.ItemFault {
		return &elastictest.ItemFault{Status: 409, Type: "version_conflict_engine_exception", Reason: fmt.Sprintf("[a]: version conflict, current version [%d] is higher than the one provided [7]", held)}
	})
	for at, want := range map[int64]outbox.Outcome{
		20: outbox.Reject(outbox.ReasonES4xx, ""),
		21: outbox.NoOp(outbox.NoopAlreadyApplied),
		22: outbox.NoOp(outbox.NoopAlreadyApplied),
	} {
		held = at
		got, err := s.Write(leading(t), []Action{{ID: "a", Version: 21, Body: []byte(`{}`)}})
		if err != nil {
			t.Fatal(err)
		}
		wantOutcomes(t, got, []outbox.Outcome{want})
		if at < 21 && !strings.Contains(got[0].Detail, "which has version 20, and 21 was sent: an ingest pipeline sets _version") {
			t.Errorf("got %q, want both versions and the cause", got[0].Detail)
		}
	}
}

// The answer for another document names both, and what sets ids.
func TestAnswerForAnotherDocumentNamesIt(t *testing.T) {
	t.Parallel()
	s, srv, _ := fakeSink(t, nil)
	srv.Script(elastictest.Mutate(func(answer []byte) []byte { return bytes.Replace(answer, []byte(`"_id":"`), []byte(`"_id":"x-`), 1) }))
	actions := docs(1)
	_, err := s.Write(leading(t), actions)
	if want := fmt.Sprintf(`for document %q, and %q was sent (an ingest pipeline that sets _id`, "x-"+actions[0].ID, actions[0].ID); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want %q", err, want)
	}
}
