package traffic

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/samuelhu324-dev/weft/outbox"
)

// Scenario says what is written.
type Scenario string

// The scenarios.
const (
	CreateScenario Scenario = "create" // each operation makes an entity
	UpdateScenario Scenario = "update" // changes of entities that were made before
	DeleteScenario Scenario = "delete" // removes entities that were made before, each once
	MixedScenario  Scenario = "mixed"  // 30 % creates, 50 % updates, 20 % deletes
	HotScenario    Scenario = "hot"    // updates, four of five of ten entities
)

// Scenarios lists them.
func Scenarios() []Scenario {
	return []Scenario{CreateScenario, UpdateScenario, DeleteScenario, MixedScenario, HotScenario}
}

// Settings of a load.
type Settings struct {
	Scenario    Scenario
	Ops         int
	Bytes       int     // of an entity's text
	Rate        float64 // operations per second; 0 is as fast as possible
	Concurrency int     // operations that are under way at most
	Seed        uint64
	Missing     outbox.Op // each operation is one event of this op for an entity that never existed; empty: the scenario
}

// setting is one of the environment's names.
type setting struct {
	env, flag, fallback, about string
	set                        func(*Settings, string) error
}

func settings() []setting {
	whole := func(low, high int, into func(*Settings) *int) func(*Settings, string) error {
		return func(s *Settings, text string) error {
			n, err := strconv.Atoi(text)
			if err != nil || n < low || n > high {
				return fmt.Errorf("%q is no number from %d to %d", text, low, high)
			}
			*into(s) = n
			return nil
		}
	}
	return []setting{
		{"LOADGEN_SCENARIO", "scenario", "create", "create, update, delete, mixed or hot", func(s *Settings, text string) error {
			s.Scenario = Scenario(text)
			if !slices.Contains(Scenarios(), s.Scenario) {
				return fmt.Errorf("%q is none of %v", text, Scenarios())
			}
			return nil
		}},
		{"TOTAL_OPS", "ops", "3000", "operations in all", whole(1, 100_000_000, func(s *Settings) *int { return &s.Ops })},
		{"CONTENT_BYTES", "bytes", "200", "length of an entity's text", whole(1, 1<<20, func(s *Settings) *int { return &s.Bytes })},
		{"RATE_PER_SEC", "rate", "100", "operations per second; 0 is as fast as possible", func(s *Settings, text string) error {
			rate, err := strconv.ParseFloat(text, 64)
			if err != nil || !(rate >= 0 && rate <= 1e6) {
				return fmt.Errorf("%q is no number from 0 to 1000000", text)
			}
			s.Rate = rate
			return nil
		}},
		{"CONCURRENCY", "concurrency", "20", "operations that are under way at most", whole(1, 500, func(s *Settings) *int { return &s.Concurrency })},
	}
}

// Load returns the settings that flags, the environment and the defaults give, in that
// order; a flag is known by its name in flags. A name that is set and does not parse is an
// error.
func Load(getenv func(string) string, flags map[string]string) (Settings, error) {
	var s Settings
	var wrong []string
	for _, one := range settings() {
		text, from := one.fallback, ""
		if v := getenv(one.env); v != "" {
			text, from = v, one.env
		}
		if v, ok := flags[one.flag]; ok {
			text, from = v, "--"+one.flag
		}
		if err := one.set(&s, strings.TrimSpace(text)); err != nil {
			wrong = append(wrong, fmt.Sprintf("%s: %v", from, err))
		}
	}
	if len(wrong) > 0 {
		return s, fmt.Errorf("load: %s", strings.Join(wrong, "; "))
	}
	return s, nil
}
