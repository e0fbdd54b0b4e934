package trail

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the table of docs/observability.md")

// TestVocabularyIsWritten holds that the page has the table that spans, lines and
// metrics of a run are compared with. `make docs` writes it.
func TestVocabularyIsWritten(t *testing.T) {
	t.Parallel()
	const begin, end = "<!-- vocabulary: written by make docs -->\n", "<!-- end of vocabulary -->\n"
	const file = "../../../docs/observability.md"
	page, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, _ := strings.Cut(string(page), begin)
	got, tail, ok := strings.Cut(rest, end)
	if !ok {
		t.Fatalf("%s has no %q … %q", file, begin, end)
	}
	if *update {
		got = "\n" + vocabularyTable() + "\n"
		if err := os.WriteFile(file, []byte(head+begin+got+end+tail), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff("\n"+vocabularyTable()+"\n", got); diff != "" {
		t.Errorf("%s: run `make docs` (-want +got):\n%s", file, diff)
	}
}

// term is one thing under its names. An empty name means that it is not there.
type term struct {
	meaning   string
	label     string // of a metric
	attribute string // of a span
	log       string // key of a line
}

// vocabulary is what weft's metrics, spans and log lines are put together with.
func vocabulary() []term {
	return []term{
		{"environment, `WORDLOOM_ENV`; the label is `unknown` where that is not set", "env", "deployment.environment.name", "env"},
		{"always `worker`", "component", "", ""},
		{"projection", "projection", "projection", "projection"},
		{"operation: `upsert`, `delete`; of a batch `mixed` when there are both, of a label `other` for what a producer made up", "op", "op", "op"},
		{"what became of it: `ok`, `partial`, `retry`, `failed`; of a request to Elasticsearch `success`, `partial`, `failed`", "result", "result", "result"},
		{"why, one of a [closed set](runbooks/reasons.md)", "reason", "reason", "reason"},
		{"which attempt at the event this is; of a batch the highest", "", "attempt", "attempt"},
		{"the same, of a line about one event", "", "attempt", "attempts"},
		{"events of the batch", "", "batch_size", "batch_size"},
		{"the row in the outbox", "", "wordloom.outbox_event_id", "event_id"},
		{"type of the entity", "", "wordloom.entity_type", "entity_type"},
		{"the entity; never the row", "", "wordloom.entity_id", "entity_id"},
		{"version of the event", "", "wordloom.outbox_event_version", "event_version"},
		{"the batch, on its span, its events' spans and all their lines", "", "wordloom.claim_batch_id", "claim_batch_id"},
		{"projection, under the name of older queries", "", "wordloom.projection", ""},
		{"version of the projection, for those that have one", "", "projection_version", ""},
		{"version of this vocabulary", "", "wordloom.obs_schema", "obs_schema"},
		{"the instance, `WEFT_INSTANCE`", "", "wordloom.worker_id", "instance"},
		{"events that are done", "", "ok_count", "ok_count"},
		{"events that are tried again", "", "retry_count", "retry_count"},
		{"events that ended in failed", "", "failed_count", "failed_count"},
		{"events that could not be settled: changed, locked or refused", "", "mismatch_count", "mismatch_count"},
		{"events that changed nothing", "", "noop_count", ""},
		{"`ok_count`, under the name of older queries", "", "success_count", ""},
		{"`retry_count` and `failed_count` together", "", "failure_count", ""},
		{"spans of single events that the batch has", "", "wordloom.event_spans", ""},
		{"the event changed nothing", "", "noop", ""},
		{"and had been done before", "", "deduped", ""},
		{"what the server said, without documents and secrets", "", "wordloom.detail", "error"},
		{"from the launch of the batch to its end; of a span its duration", "", "", "latency_ms"},
		{"what a look at the outbox found: `rows` or `none`", "found", "", ""},
		{"entities that a lease was asked for", "", "limit", ""},
		{"events of a lease", "", "claimed", ""},
		{"of these, retries that were due", "", "due_count", "due"},
		{"of these, ready ones", "", "ready_count", "ready"},
		{"entities that were left out of a lease, because an earlier event of theirs is open", "", "blocked_count", "blocked"},
		{"the batch was given up, because the term was over", "", "wordloom.abandoned", ""},
		{"fault that a drill has injected", "", "wordloom.labs.es_429.*", ""},
		{"what led to the event, by the producer's `correlation_id`, where its source or its outbox row has one", "", "correlation_id", "correlation_id"},
		{"trace; on the exemplars of histograms, too", "", "", "trace_id"},
		{"span", "", "", "span_id"},
		{"kind of the line; [what each means](runbooks/log-events.md)", "", "", "event"},
	}
}

// vocabularyTable is the vocabulary as Markdown.
func vocabularyTable() string {
	var b strings.Builder
	b.WriteString("| meaning | metric label | span attribute | log key |\n|---|---|---|---|\n")
	name := func(s string) string {
		if s == "" {
			return ""
		}
		return "`" + s + "`"
	}
	for _, t := range vocabulary() {
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", t.meaning, name(t.label), name(t.attribute), name(t.log))
	}
	return b.String()
}
