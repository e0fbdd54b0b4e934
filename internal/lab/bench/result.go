package bench

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"runtime"
	"slices"
	"strings"

	"github.com/samuelhu324-dev/weft/internal/lab/rig"
	"github.com/samuelhu324-dev/weft/internal/lab/verdict"
)

// Result is what a scenario has shown. A figure that the scenario does not have is
// missing; figures of several rounds are their median unless said otherwise.
type Result struct {
	Scenario string `json:"scenario"`
	Rounds   int    `json:"rounds"`
	Events   int    `json:"events"`
	Cores    int    `json:"cores"`

	// Ratios of the two sides of each round. Of rates, more is better; of times, less.
	RatioToRaw  *verdict.Range       `json:"ratio_to_raw,omitempty"`
	RatioToOwn  *verdict.Range       `json:"ratio_to_own_schema,omitempty"`
	Traces      *verdict.Range       `json:"ratio_to_untraced,omitempty"`
	RatioToOne  *verdict.Range       `json:"ratio_to_one_shard,omitempty"`
	ClaimRatio  *verdict.Range       `json:"claim_p99_ratio,omitempty"` // p99 of leases and lists to that at 20,000 pending
	HeadToBase  *verdict.Range       `json:"head_to_base,omitempty"`    // weft to the build it is compared with
	Compared    string               `json:"head_to_base_of,omitempty"` // what figure of the two
	OtherEPS    float64              `json:"-"`                         // of whichever side weft is compared with
	RawEPS      float64              `json:"raw_eps,omitempty"`         // bare loader
	OwnEPS      float64              `json:"own_schema_eps,omitempty"`  // weft's own tables
	OneEPS      float64              `json:"one_shard_eps,omitempty"`   // without shards
	BaseEPS     float64              `json:"base_eps,omitempty"`        // the other build
	WeftRounds  verdict.Distribution `json:"weft_eps_rounds"`           // in their order
	OtherRounds verdict.Distribution `json:"other_eps_rounds,omitempty"`

	sample             // in the middle, of weft
	RawElastic float64 `json:"raw_elasticsearch_cpu_us_per_event,omitempty"`

	Triggers []TriggerCost `json:"triggers,omitempty"`
	Upkeep   *Upkeep       `json:"upkeep,omitempty"`

	Claim     *Claims `json:"claim,omitempty"` // leases and lists, of all rounds together
	List      *Claims `json:"list,omitempty"`  // those of lists alone
	Reference *Claims `json:"claim_reference,omitempty"`
	ClaimP99  float64 `json:"claim_p99_ms,omitempty"`

	shown
}

// shown is the ratio that a result has.
type shown struct {
	ratio *verdict.Range // nil for none
	of    string
	less  bool // is better
}

// Claims says how long they took.
type Claims struct {
	N   int     `json:"n"`
	P50 float64 `json:"p50_ms"`
	P99 float64 `json:"p99_ms"`
	Max float64 `json:"max_ms"`
}

// newClaims returns nil for no times.
func newClaims(ms verdict.Distribution) *Claims {
	if len(ms) == 0 {
		return nil
	}
	c := Claims(ms.Latency())
	return &c
}

// each is one figure of all samples, in their order.
func each(samples []sample, figure func(sample) float64) verdict.Distribution {
	return rig.Map(samples, figure)
}

func eps(s sample) float64      { return s.EPS }
func p99(s sample) float64      { return s.P99MS }
func claimP99(s sample) float64 { return s.Claims.Percentile(99) }

// figures are the numbers of a sample: those of which the median of several rounds counts, and those
// of which the peak does.
func (s *sample) figures() (medians, peaks []*float64) {
	return []*float64{
		&s.EPS, &s.P50MS, &s.P99MS, &s.CPU.Weft, &s.CPU.Postgres, &s.CPU.Elasticsearch, &s.Vacuum, &s.Allocs, &s.WALBytes, &s.RoundTrips,
		&s.IdleLeader, &s.IdleStandby,
	}, []*float64{&s.MaxMS, &s.RSSMB, &s.Retries}
}

// middle is the median of each figure, the maximum where it is a peak, and all claims.
func middle(samples []sample) (m sample) {
	medians, peaks := m.figures()
	for n, into := range medians {
		*into = each(samples, func(s sample) float64 { all, _ := s.figures(); return *all[n] }).Median()
	}
	for n, into := range peaks {
		*into = each(samples, func(s sample) float64 { _, all := s.figures(); return *all[n] }).Max()
	}
	for _, s := range samples {
		m.Claims, m.Lists = append(m.Claims, s.Claims...), append(m.Lists, s.Lists...)
	}
	return m
}

// newResult adds up what the sides of s have shown: weft first, then what it is
// compared with, if anything.
func newResult(s scenario, w workload, sides []*side) *Result {
	weft := sides[0].samples
	r := &Result{Scenario: s.name, Rounds: len(weft), Events: w.events, Cores: runtime.NumCPU(), WeftRounds: each(weft, eps), sample: middle(weft)}
	if r.Claim, r.List = newClaims(r.Claims), newClaims(r.Lists); r.Claim != nil {
		r.ClaimP99 = r.Claim.P99
	}
	if len(sides) == 1 {
		return r
	}
	other := sides[1].samples
	o := middle(other)
	r.OtherEPS, r.OtherRounds = o.EPS, each(other, eps)
	ratio := func(figure func(sample) float64, of string, less bool) *verdict.Range {
		r.shown = shown{each(weft, figure).Over(each(other, figure)).Range(), of, less}
		return r.ratio
	}
	switch sides[1].name {
	case sideRaw:
		r.RawEPS, r.RawElastic, r.RatioToRaw = o.EPS, o.CPU.Elasticsearch, ratio(eps, "bare loader", false)
	case sideOwn:
		r.OwnEPS, r.RatioToOwn = o.EPS, ratio(eps, "own schema", false)
	case sideUntraced:
		r.Traces = ratio(eps, "no traces", false)
	case sideOne:
		r.OneEPS, r.RatioToOne = o.EPS, ratio(eps, "one shard", false)
	case sideReference:
		r.Reference, r.ClaimRatio = newClaims(o.Claims), ratio(claimP99, "list and lease p99 at 20,000", true)
	case sideBase:
		figure, less := eps, true
		switch s.kind {
		case claims:
			figure, r.Compared = claimP99, "list and lease p99"
		case trickle:
			figure, r.Compared = p99, "latency p99"
		default:
			less, r.Compared = false, "events per second"
		}
		r.BaseEPS, r.HeadToBase = o.EPS, ratio(figure, r.Compared+", head to base", less)
	}
	return r
}

// brief is a sample in a line.
func (s sample) brief(k kind) string {
	text := number(s.EPS) + " ev/s"
	if s.Retries > 0 {
		text += fmt.Sprintf(", %.0f retries", s.Retries)
	}
	switch k {
	case trickle:
		text += fmt.Sprintf(", p50 %.1f ms, p99 %.1f ms, idle %.2f %% and %.2f %%", s.P50MS, s.P99MS, s.IdleLeader, s.IdleStandby)
	case claims:
		text += fmt.Sprintf(", list and lease p50 %.2f ms, p99 %.2f ms, max %.2f ms", s.Claims.Percentile(50), claimP99(s), s.Claims.Max())
	case byItself:
		text += fmt.Sprintf(", %.0f MB", s.RSSMB)
	default: // the rate says it all
	}
	return text
}

func writeJSON(file string, results []*Result) error {
	byName := map[string]*Result{}
	for _, r := range results {
		byName[r.Scenario] = r
	}
	return rig.WriteResult(file, byName)
}

// tooSlow returns an error that names the scenarios whose median ratio is worse than least: below
// it, or where less is better above its inverse. 0 is no judgement.
func tooSlow(results []*Result, least float64) error {
	if least <= 0 {
		return nil
	}
	var bad []string
	for _, r := range results {
		switch ratio := r.ratio; {
		case ratio == nil:
			bad = append(bad, r.Scenario+" has no ratio")
		case r.less && !(ratio.Median <= 1/least):
			bad = append(bad, fmt.Sprintf("%s has %v (%s), want at most %.2f", r.Scenario, ratio, r.of, 1/least))
		case !r.less && !(ratio.Median >= least):
			bad = append(bad, fmt.Sprintf("%s has %v (%s), want at least %.2f", r.Scenario, ratio, r.of, least))
		}
	}
	if len(bad) > 0 {
		return errors.New("too slow: " + strings.Join(bad, "; "))
	}
	return nil
}

// writeTable writes what people want to know first, and then what it cost.
func writeTable(out io.Writer, results []*Result) {
	var rates, costs [][]any
	for _, r := range results {
		if r.Triggers != nil || r.Upkeep != nil {
			continue // said line by line
		}
		rates = append(rates, []any{r.Scenario, r.Rounds, number(r.EPS), number(r.OtherEPS), r.ratio, r.of, tenth(r.P50MS), tenth(r.P99MS), tenth(r.MaxMS),
			fmt.Sprintf("%.0f", r.RSSMB)})
		c := cmp.Or(r.Claim, &Claims{})
		costs = append(costs, []any{r.Scenario, tenth(r.CPU.Weft), tenth(r.CPU.Postgres), tenth(r.Vacuum), tenth(r.CPU.Elasticsearch), hundredth(r.Allocs),
			fmt.Sprintf("%.0f", r.WALBytes), fmt.Sprintf("%.4f", r.RoundTrips), hundredth(c.P50), hundredth(c.P99), hundredth(c.Max), hundredth(r.IdleLeader), hundredth(r.IdleStandby)})
	}
	fmt.Fprintln(out)
	verdict.WriteRows(out, []any{"scenario", "rounds", "weft ev/s", "other ev/s", "ratio (min–max)", "to", "p50 ms", "p99 ms", "max ms", "RSS MB"}, rates...)
	fmt.Fprintln(out)
	verdict.WriteRows(out, []any{"per event", "CPU µs weft", "Postgres", "vacuum", "Elasticsearch", "allocs", "WAL bytes", "round trips",
		"list and lease p50 ms", "p99", "max", "idle % leader", "standby"}, costs...)
}

func tenth(f float64) string     { return fmt.Sprintf("%.1f", f) }
func hundredth(f float64) string { return fmt.Sprintf("%.2f", f) }

// number writes f without a fraction, with a comma after every third digit from the right; a
// dash stands for a figure that there is not.
func number(f float64) string {
	if f <= 0 {
		return "–"
	}
	return rig.Number(int(math.Round(f)))
}

// writeChart draws the ratio of every scenario that has one, with whiskers from the least to
// the most of its rounds. Ratios of one kind share a panel.
func writeChart(file string, results []*Result) error {
	picture, err := verdict.DrawBars("Ratios of the scenarios, median with minimum and maximum", panels(results))
	if err == nil {
		err = os.WriteFile(file, picture, 0o644)
	}
	return rig.Wrap("chart", err)
}

func panels(results []*Result) (out []verdict.Panel) {
	for _, r := range results {
		if r.ratio == nil {
			continue
		}
		title := r.panelTitle()
		i := slices.IndexFunc(out, func(p verdict.Panel) bool { return p.Title == title })
		if i < 0 {
			i = len(out)
			out = append(out, verdict.Panel{Title: title})
		}
		out[i].Bars = append(out[i].Bars, verdict.Bar{Name: r.Scenario, Range: *r.ratio})
	}
	return out
}

func (s *shown) panelTitle() string {
	switch {
	case s.less:
		return s.of + " — less is better"
	case strings.HasSuffix(s.of, "head to base"):
		return s.of + " — more is better"
	default:
		return "events per second, those of the " + s.of + " being 1 — more is better"
	}
}
