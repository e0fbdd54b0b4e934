package config_test

import (
	"strings"
	"testing"
	"time"

	"github.com/samuelhu324-dev/weft/internal/config"
)

const (
	search    = "search_index_to_elastic"
	chronicle = "chronicle_events_to_entries"
)

// TestFinishedByProjection: one value is for all, pairs or a mapping for those that they
// name, and the others keep.
func TestFinishedByProjection(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		yaml string
		env  []string
		args []string
		want [2]string // search, chronicle
		text string
	}{
		"Default":       {want: [2]string{"keep", "keep"}, text: "keep"},
		"One":           {env: []string{"OUTBOX_FINISHED=archive"}, want: [2]string{"archive", "archive"}, text: "archive"},
		"Capitals":      {env: []string{"OUTBOX_FINISHED=Delete"}, want: [2]string{"delete", "delete"}, text: "delete"},
		"Pair":          {env: []string{"OUTBOX_FINISHED=" + search + "=archive"}, want: [2]string{"archive", "keep"}, text: search + "=archive"},
		"Pairs":         {args: []string{"--finished", chronicle + " = keep, " + search + "=delete"}, want: [2]string{"delete", "keep"}, text: search + "=delete," + chronicle + "=keep"},
		"YAMLValue":     {yaml: "outbox: {finished: archive}\n", want: [2]string{"archive", "archive"}, text: "archive"},
		"YAMLMap":       {yaml: "outbox:\n  finished:\n    " + chronicle + ": delete\n    " + search + ": archive\n", want: [2]string{"archive", "delete"}, text: search + "=archive," + chronicle + "=delete"},
		"LaterWins":     {yaml: "outbox: {finished: {" + search + ": archive}}\n", env: []string{"OUTBOX_FINISHED=keep"}, want: [2]string{"keep", "keep"}, text: "keep"},
		"NotInheriting": {yaml: "outbox: {finished: archive}\n", env: []string{"OUTBOX_FINISHED=" + chronicle + "=archive"}, want: [2]string{"keep", "archive"}, text: chronicle + "=archive"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, err := load(t, tc.yaml, append([]string{dsn}, tc.env...), tc.args...)
			if err != nil {
				t.Fatal(err)
			}
			if got := [2]string{c.Outbox.FinishedOf(search), c.Outbox.FinishedOf(chronicle)}; got != tc.want || c.Outbox.Finished != tc.text {
				t.Errorf("got %v, %q, want %v, %q", got, c.Outbox.Finished, tc.want, tc.text)
			}
		})
	}
	if got := (config.Outbox{}).FinishedOf(search); got != "keep" {
		t.Errorf("without a setting: got %q, want keep", got)
	}
}

func TestRetentionAndAuditSettings(t *testing.T) {
	t.Parallel()
	const days = 24 * time.Hour
	c, err := load(t, "audit: {keep: 7d, keep_failures: 90d}\n", []string{dsn}, "--retention=30d")
	if err != nil || c.Outbox.Retention != 30*days || c.Audit != (config.Audit{Keep: 7 * days, KeepFailures: 90 * days}) {
		t.Errorf("got %+v, %+v, %v", c.Outbox, c.Audit, err)
	}
	c, err = load(t, "", []string{dsn})
	if err != nil || c.Outbox.Retention != 0 || c.Audit != (config.Audit{Keep: 30 * days, KeepFailures: 365 * days}) {
		t.Errorf("defaults: got %+v, %+v, %v", c.Outbox, c.Audit, err)
	}
	for text, want := range map[string]string{
		"OUTBOX_FINISHED=burn":                                    "want one of keep, archive, delete",
		"OUTBOX_FINISHED=":                                        "is set but empty",
		"OUTBOX_FINISHED=archive,keep":                            "or PROJECTION=VALUE pairs",
		"OUTBOX_FINISHED=serch_index_to_elastic=keep":             `unknown projection "serch_index_to_elastic": want one of search_index_to_elastic, chronicle_events_to_entries; did you mean`,
		"OUTBOX_FINISHED=" + search + "=burn":                     search + ": want one of keep",
		"OUTBOX_FINISHED=" + search + "=keep," + search + "=keep": search + " is named twice",
		"OUTBOX_RETENTION=30":                                     "the unit is missing",
		"OUTBOX_RETENTION=-5h":                                    "out of range",
		"OUTBOX_RETENTION=10m":                                    "want 0, or an hour or more",
		"OUTBOX_RETENTION=4000d":                                  "out of range",
		"OUTBOX_RETENTION=99999999999999999999d":                  "want a duration such as",
		"WEFT_AUDIT_KEEP=1h":                                      "out of range",
		"WEFT_AUDIT_KEEP=400d":                                    "audit.keep_failures: 8760h must not be shorter than audit.keep (9600h)",
	} {
		if _, err := load(t, "", []string{dsn, text}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", text, err, want)
		}
	}
	for yaml, want := range map[string]string{
		"outbox: {finished: {}}\n":                       "has no value",
		"outbox: {finished: [archive]}\n":                "want a single value",
		"outbox: {finished: {" + search + ": [keep]}}\n": "want a name and a value in each line",
		"outbox: {finished: {books: keep}}\n":            `unknown projection "books"`,
		"outbox: {lease: {a: b}}\n":                      "want a single value",
	} {
		if _, err := load(t, yaml, []string{dsn}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %q", yaml, err, want)
		}
	}
}
