//go:build observability

package watch_test

import (
	"fmt"
	"maps"
	"math"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "github.com/prometheus/client_golang/api/prometheus/v1"
	"github.com/prometheus/common/model"

	"github.com/samuelhu324-dev/weft/internal/testenv/watch"
)

// TestPromtool has promtool's word on the configuration, the rules, and the rules' own
// tests.
func TestPromtool(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		append([]string{"check", "rules"}, ruleFiles(t)...),
		append([]string{"test", "rules"}, files(t, tree+"/deploy/prometheus/tests/*.yaml")...),
		{"check", "config", tree + "/deploy/prometheus/prometheus.yml"},
		{"check", "config", tree + "/deploy/compose/prometheus/prometheus.yml"},
	} {
		cmd := exec.CommandContext(t.Context(), "promtool", args...)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v (apt-get install prometheus brings it)\n%s", strings.Join(args[:2], " "), err, out)
		}
	}
}

// signals returns what each rule and each part of the dashboard looks at. Of an alert
// that is the expression without its thresholds: all is well, so it compares to nothing,
// but what it compares must be there, with labels that meet.
func signals(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, r := range rules(t) {
		all["rule "+r.Record+r.Alert] = r.Expr
		if r.Record != "" {
			all["record "+r.Record] = r.Record
		}
	}
	d := readDashboard(t)
	for _, p := range d.Panels {
		for i, target := range p.Targets {
			all[fmt.Sprintf("panel %s %d (%s)", p.Title, i, p.Type)] = target.Expr
		}
	}
	for _, a := range d.Annotations.List {
		all["annotation "+a.Name] = a.Expr
	}
	for _, v := range d.Templating.List {
		if v.Type == "query" {
			all["variable "+v.Name] = v.Definition
		}
	}
	absent := regexp.MustCompile(`absent\(([^()]*)\)`) // as it should be
	threshold := regexp.MustCompile(` (?:==|!=|>=|<=|>|<) [0-9.]+\b`)
	values := regexp.MustCompile(`^label_values\((.*), \w+\)$`)
	for name, expr := range maps.Clone(all) {
		expr = values.ReplaceAllString(expr, "$1")
		expr = strings.NewReplacer("$env", environment, "$projection", ".+", "$__rate_interval", "1m").Replace(expr)
		all[name] = threshold.ReplaceAllString(absent.ReplaceAllString(expr, "$1"), "")
		if parts := operands(all[name]); len(parts) > 1 {
			for i, part := range parts {
				all[fmt.Sprintf("%s, operand %d", name, i)] = part
			}
		}
	}
	for name, expr := range saved() {
		all["saved "+name] = expr
	}
	return all
}

// saved are the questions of dashboards that were there before weft: the contract's
// metrics by the labels that they have always had.
func saved() map[string]string {
	all := map[string]string{
		"outbox_es_bulk_request_duration_seconds": `histogram_quantile(0.95, sum by (le, env) (rate(outbox_es_bulk_request_duration_seconds_bucket{component="worker"}[1m])))`,
	}
	for name, labels := range map[string]string{
		"outbox_processed_total": ", op", "outbox_failed_total": ", op, reason", "outbox_retry_scheduled_total": ", op, reason",
		"outbox_terminal_failed_total": ", op, reason", "outbox_idempotent_noop_total": ", op, reason", "outbox_owner_mismatch_skips_total": "",
		"outbox_es_bulk_requests_total": ", result", "outbox_es_bulk_items_total": ", op, result", "outbox_es_bulk_item_failures_total": ", op, failure_class",
	} {
		all[name] = fmt.Sprintf(`sum by (env, projection%s) (rate(%s{component="worker"}[1m]))`, labels, name)
	}
	for name, label := range map[string]string{
		"outbox_es_bulk_requests_total": `result=~"success|partial|failed"`, "outbox_es_bulk_items_total": `result=~"success|failed"`,
		"outbox_es_bulk_item_failures_total": `failure_class=~"429|4xx|5xx|other"`, "outbox_retry_scheduled_total": `reason=~"es_429|es_connect"`,
		"outbox_idempotent_noop_total": `reason="es_404"`,
	} {
		value, want, _ := strings.Cut(label, "=")
		n := strings.Count(want, "|") + 1
		all[name+" of "+label] = fmt.Sprintf(`count(count by (%s) (%s{component="worker", %s})) == %d`, value, name, label, n)
	}
	for _, name := range []string{
		"outbox_lag_events", "outbox_lag_seconds", "outbox_oldest_age_seconds", "outbox_inflight_events", "outbox_stuck_processing_events",
		"outbox_last_success_timestamp_seconds", "projection_rebuild_duration_seconds", "projection_rebuild_last_finished_timestamp_seconds",
		"projection_rebuild_last_success",
	} {
		all[name] = fmt.Sprintf(`max by (env, projection) (%s{component="worker"})`, name)
	}
	return all
}

// operands splits an expression at the and, or and unless outside of all brackets: what
// one side of an or returns says nothing about the other.
func operands(expr string) (parts []string) {
	word, matching := regexp.MustCompile(`^ (?:and|or|unless) `), regexp.MustCompile(`^on \([^)]*\) `)
	depth, begin := 0, 0
	for i, c := range expr {
		switch {
		case strings.ContainsRune("([{", c):
			depth++
		case strings.ContainsRune(")]}", c):
			depth--
		case depth == 0 && word.MatchString(expr[i:]):
			parts = append(parts, expr[begin:i])
			begin = i + len(word.FindString(expr[i:])) + len(matching.FindString(expr[i+len(word.FindString(expr[i:])):]))
		}
	}
	return append(parts, expr[begin:])
}

// TestEveryExpressionReturnsSomething asks a Prometheus that has scraped a pair under load.
func TestEveryExpressionReturnsSomething(t *testing.T) {
	t.Parallel()
	pair := startPair(t)
	prometheus := startPrometheus(t, watch.PrometheusOptions{Rules: ruleFiles(t), Interval: 500 * time.Millisecond, Targets: pair.targets()})
	pair.load(t)

	left := signals(t)
	if len(left) < 60 {
		t.Fatalf("got %d expressions, want all of them", len(left))
	}
	missing := map[string]error{}
	for deadline := time.Now().Add(2 * time.Minute); len(left) > 0 && time.Now().Before(deadline); {
		clear(missing)
		for name, expr := range left {
			if whole, _, _ := strings.Cut(expr, " unless "); strings.Count(whole, "(") == strings.Count(whole, ")") {
				expr = whole // what it takes away is an operand of its own
			}
			series, err := prometheus.Vector(t.Context(), expr)
			if err == nil && slices.ContainsFunc(series, func(s *model.Sample) bool { return !math.IsNaN(float64(s.Value)) }) {
				delete(left, name)
				continue
			}
			missing[name] = err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(left)) {
		t.Errorf("%s: returns nothing (%v): %s", name, missing[name], left[name])
	}
	for _, p := range readDashboard(t).Panels {
		for _, target := range p.Targets {
			for _, variable := range []string{"$env", "$projection"} {
				if !strings.Contains(target.Expr, variable) {
					continue
				}
				expr := strings.NewReplacer(variable, "none", "$env", ".+", "$projection", ".+", "$__rate_interval", "1m").Replace(target.Expr)
				if series, err := prometheus.Vector(t.Context(), expr); err != nil || len(series) > 0 {
					t.Errorf("panel %s, when %s is another: got %v, %v, want nothing", p.Title, variable, series, err)
				}
			}
		}
	}
	fired, err := prometheus.Alerts(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range fired.Alerts {
		if a.State == v1.AlertStateFiring {
			t.Errorf("a healthy pair has raised %v: %s", a.Labels, a.Annotations["description"])
		}
	}
}
