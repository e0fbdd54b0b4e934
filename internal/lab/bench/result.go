package bench

import (
	"fmt"
	"io"
	"runtime"
	"slices"
	"strconv"
	"text/tabwriter"

	"github.com/samuelhu324-dev/weft/internal/lab/console"
)

// Result is what a scenario has shown. A figure that the scenario does not have is
// missing; figures of several rounds are their median unless said otherwise.
type Result struct {
	Scenario string `json:"scenario"`
	Rounds   int    `json:"rounds"`
	Events   int    `json:"events"`
	Cores    int    `json:"cores"`

	// Ratios of the two sides of each round. Of rates, more is better; of times, less.
	RatioToRaw  *Spread   `json:"ratio_to_raw,omitempty"`
	RatioToOwn  *Spread   `json:"ratio_to_own_schema,omitempty"`
	Traces      *Spread   `json:"ratio_to_untraced,omitempty"`
	ClaimRatio  *Spread   `json:"claim_p99_ratio,omitempty"` // p99 of leases and lists to that at 20,000 pending
	HeadToBase  *Spread   `json:"head_to_base,omitempty"`    // weft to the build it is compared with
	Compared    string    `json:"head_to_base_of,omitempty"` // what figure of the two
	WeftEPS     float64   `json:"weft_eps"`                  // events per second
	OtherEPS    float64   `json:"-"`                         // of whichever side weft is compared with
	RawEPS      float64   `json:"raw_eps,omitempty"`         // bare loader
	OwnEPS      float64   `json:"own_schema_eps,omitempty"`  // weft's own tables
	BaseEPS     float64   `json:"base_eps,omitempty"`        // the other build
	WeftRounds  []float64 `json:"weft_eps_rounds"`           // in their order
	OtherRounds []float64 `json:"other_eps_rounds,omitempty"`

	P50MS float64 `json:"p50_ms"` // lease → acknowledgement, without those that are deleted; for trickle commit → commit
	P99MS float64 `json:"p99_ms"`
	MaxMS float64 `json:"max_ms"` // of all rounds

	RSSMB       float64 `json:"rss_mb"` // the peak, of all rounds
	CPU         cpu     `json:"cpu_us_per_event"`
	Vacuum      float64 `json:"postgres_vacuum_us_per_event,omitempty"` // CPU of PostgreSQL after the drain
	RawElastic  float64 `json:"raw_elasticsearch_cpu_us_per_event,omitempty"`
	Allocs      float64 `json:"allocs_per_event"`
	WALBytes    float64 `json:"wal_bytes_per_event"`
	RoundTrips  float64 `json:"round_trips_per_event"`
	Retries     float64 `json:"retries"`                           // the most of a round
	IdleLeader  float64 `json:"idle_leader_cpu_percent,omitempty"` // of a core
	IdleStandby float64 `json:"idle_standby_cpu_percent,omitempty"`

	Claim     *Claims `json:"claim,omitempty"` // leases and lists, of all rounds together
	Lists     *Claims `json:"list,omitempty"`  // those of lists alone
	Reference *Claims `json:"claim_reference,omitempty"`
	ClaimP99  float64 `json:"claim_p99_ms,omitempty"`
}

// Claims says how long they took.
type Claims struct {
	N     int     `json:"n"`
	P50MS float64 `json:"p50_ms"`
	P99MS float64 `json:"p99_ms"`
	MaxMS float64 `json:"max_ms"`
}

func newClaims(ms []float64) *Claims {
	if len(ms) == 0 {
		return nil
	}
	return &Claims{N: len(ms), P50MS: percentile(ms, 50), P99MS: percentile(ms, 99), MaxMS: percentile(ms, 100)}
}

// each is one figure of all samples, in their order.
func each(samples []sample, figure func(sample) float64) []float64 {
	out := make([]float64, len(samples))
	for i, s := range samples {
		out[i] = figure(s)
	}
	return out
}

func eps(s sample) float64      { return s.EPS }
func p99(s sample) float64      { return s.P99MS }
func claimP99(s sample) float64 { return percentile(s.Claims, 99) }

// middle is the median of each figure, the maximum where it is a peak, and all claims.
func middle(samples []sample) (m sample) {
	of := func(figure func(sample) float64) float64 { return median(each(samples, figure)) }
	peak := func(figure func(sample) float64) float64 { return percentile(each(samples, figure), 100) }
	m = sample{
		EPS: of(eps), P50MS: of(func(s sample) float64 { return s.P50MS }), P99MS: of(p99),
		MaxMS: peak(func(s sample) float64 { return s.MaxMS }), RSSMB: peak(func(s sample) float64 { return s.RSSMB }),
		Retries: peak(func(s sample) float64 { return s.Retries }),
		CPU: cpu{
			Weft:          of(func(s sample) float64 { return s.CPU.Weft }),
			Postgres:      of(func(s sample) float64 { return s.CPU.Postgres }),
			Elasticsearch: of(func(s sample) float64 { return s.CPU.Elasticsearch }),
		},
		Vacuum:      of(func(s sample) float64 { return s.Vacuum }),
		Allocs:      of(func(s sample) float64 { return s.Allocs }),
		WALBytes:    of(func(s sample) float64 { return s.WALBytes }),
		RoundTrips:  of(func(s sample) float64 { return s.RoundTrips }),
		IdleLeader:  of(func(s sample) float64 { return s.IdleLeader }),
		IdleStandby: of(func(s sample) float64 { return s.IdleStandby }),
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
	m := middle(weft)
	r := &Result{
		Scenario: s.name, Rounds: len(weft), Events: w.events, Cores: runtime.NumCPU(),
		WeftEPS: m.EPS, WeftRounds: each(weft, eps), P50MS: m.P50MS, P99MS: m.P99MS, MaxMS: m.MaxMS, RSSMB: m.RSSMB, CPU: m.CPU, Vacuum: m.Vacuum,
		Allocs: m.Allocs, WALBytes: m.WALBytes, RoundTrips: m.RoundTrips, Retries: m.Retries, IdleLeader: m.IdleLeader, IdleStandby: m.IdleStandby,
		Claim: newClaims(m.Claims), Lists: newClaims(m.Lists),
	}
	if r.Claim != nil {
		r.ClaimP99 = r.Claim.P99MS
	}
	if len(sides) == 1 {
		return r
	}
	other := sides[1].samples
	o := middle(other)
	r.OtherEPS, r.OtherRounds = o.EPS, each(other, eps)
	ratio := func(figure func(sample) float64) *Spread {
		return spread(ratios(each(weft, figure), each(other, figure)))
	}
	switch sides[1].name {
	case sideRaw:
		r.RawEPS, r.RawElastic, r.RatioToRaw = o.EPS, o.CPU.Elasticsearch, ratio(eps)
	case sideOwn:
		r.OwnEPS, r.RatioToOwn = o.EPS, ratio(eps)
	case sideUntraced:
		r.Traces = ratio(eps)
	case sideReference:
		r.Reference, r.ClaimRatio = newClaims(o.Claims), ratio(claimP99)
	case sideBase:
		r.BaseEPS = o.EPS
		r.HeadToBase, r.Compared = ratio(eps), "events per second"
		switch s.kind {
		case claims:
			r.HeadToBase, r.Compared = ratio(claimP99), "list and lease p99"
		case trickle:
			r.HeadToBase, r.Compared = ratio(p99), "latency p99"
		case againstRaw, againstOwn, againstUntraced, byItself:
		}
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
		text += fmt.Sprintf(", list and lease p50 %.2f ms, p99 %.2f ms, max %.2f ms", percentile(s.Claims, 50), claimP99(s), percentile(s.Claims, 100))
	case byItself:
		text += fmt.Sprintf(", %.0f MB", s.RSSMB)
	case againstRaw, againstOwn, againstUntraced:
	}
	return text
}

func writeJSON(file string, results []*Result) error {
	byName := map[string]*Result{}
	for _, r := range results {
		byName[r.Scenario] = r
	}
	return console.WriteResult(file, byName)
}

// ratio returns the one that r has, and what it is of.
func (r *Result) ratio() (s *Spread, of string, lessIsBetter bool) {
	switch {
	case r.HeadToBase != nil:
		return r.HeadToBase, r.Compared + ", head to base", r.Compared != "events per second"
	case r.RatioToRaw != nil:
		return r.RatioToRaw, "bare loader", false
	case r.RatioToOwn != nil:
		return r.RatioToOwn, "own schema", false
	case r.Traces != nil:
		return r.Traces, "no traces", false
	case r.ClaimRatio != nil:
		return r.ClaimRatio, "list and lease p99 at 20,000", true
	default:
		return nil, "", false
	}
}

// writeTable writes what people want to know first, and then what it cost.
func writeTable(out io.Writer, results []*Result) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "\nscenario\trounds\tweft ev/s\tother ev/s\tratio (min–max)\tto\tp50 ms\tp99 ms\tmax ms\tRSS MB")
	for _, r := range results {
		ratio, of, _ := r.ratio()
		fmt.Fprintf(w, "%s\t%d\t%s\t%s\t%s\t%s\t%.1f\t%.1f\t%.1f\t%.0f\n", r.Scenario, r.Rounds, number(r.WeftEPS), number(r.OtherEPS),
			ratio, of, r.P50MS, r.P99MS, r.MaxMS, r.RSSMB)
	}
	fmt.Fprintln(w, "\nper event\tCPU µs weft\tPostgres\tvacuum\tElasticsearch\tallocs\tWAL bytes\tround trips\tlist and lease p50 ms\tp99\tmax\tidle % leader\tstandby")
	for _, r := range results {
		c := r.Claim
		if c == nil {
			c = &Claims{}
		}
		fmt.Fprintf(w, "%s\t%.1f\t%.1f\t%.1f\t%.1f\t%.2f\t%.0f\t%.4f\t%.2f\t%.2f\t%.2f\t%.2f\t%.2f\n", r.Scenario, r.CPU.Weft, r.CPU.Postgres, r.Vacuum, r.CPU.Elasticsearch,
			r.Allocs, r.WALBytes, r.RoundTrips, c.P50MS, c.P99MS, c.MaxMS, r.IdleLeader, r.IdleStandby)
	}
	if err := w.Flush(); err != nil {
		return fmt.Errorf("table: %w", err)
	}
	return nil
}

// String is the median and, in brackets, both ends.
func (s *Spread) String() string {
	if s == nil {
		return "–"
	}
	return fmt.Sprintf("%.2f (%.2f–%.2f)", s.Median, s.Min, s.Max)
}

// number writes f without a fraction, with a comma after every third digit from the
// right; a dash is for a figure that there is not.
func number(f float64) string {
	if f <= 0 {
		return "–"
	}
	digits := []byte(strconv.FormatFloat(f, 'f', 0, 64))
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = slices.Insert(digits, i, ',')
	}
	return string(digits)
}
