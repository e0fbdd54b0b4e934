package shards_test

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/samuelhu324-dev/weft/internal/shards"
)

func TestDecide(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		me, live, leaders, vacant string // one letter each; "-" for nobody, "x" for vacant, "k" for kept
		uneven                    bool
		campaign                  string
		giveUp                    int
	}{
		"Alone":                        {me: "a", live: "a", leaders: "aaaa", campaign: "yyyy", giveUp: -1},
		"NobodySeen":                   {me: "a", leaders: "----", campaign: "yyyy", giveUp: -1},
		"NobodyLeads":                  {me: "a", live: "ab", leaders: "----", campaign: "yyyy", giveUp: -1},
		"AnotherComes":                 {me: "a", live: "ab", leaders: "aaaa", campaign: "nnnn", giveUp: 3},
		"ComesItself":                  {me: "b", live: "ab", leaders: "aaaa", campaign: "yyyy", giveUp: -1},
		"OneAtATime":                   {me: "a", live: "ab", leaders: "aaa-", uneven: true, campaign: "nnnn", giveUp: -1},
		"OneIsMoved":                   {me: "a", live: "ab", leaders: "aaab", campaign: "nnnn", giveUp: 2},
		"Even":                         {me: "a", live: "ab", leaders: "aabb", campaign: "yyyy", giveUp: -1},
		"EvenWithARest":                {me: "a", live: "ab", leaders: "aab", campaign: "yyy", giveUp: -1},
		"LeaderDies":                   {me: "b", live: "ab", leaders: "--bb", campaign: "yyyy", giveUp: -1},
		"LastStepEndsUneven":           {me: "b", live: "abcd", leaders: "a-bc", uneven: true, campaign: "nnnn", giveUp: -1},
		"ThirdComesFirstByNameGives":   {me: "a", live: "abc", leaders: "aabb", campaign: "nnnn", giveUp: 1},
		"ThirdComesOthersWait":         {me: "b", live: "abc", leaders: "aabb", campaign: "nnnn", giveUp: -1},
		"VacantIsOpenToAll":            {me: "b", live: "abc", leaders: "a-bb", vacant: "nxnn", uneven: true, campaign: "nynn", giveUp: -1},
		"LeaderThatIsNotSeenIsNoShare": {me: "a", live: "ab", leaders: "abzz", campaign: "yyyy", giveUp: -1},
		"KeptComesLast":                {me: "a", live: "ac", leaders: "aaaa", vacant: "nnnk", campaign: "nnnn", giveUp: 2},
		"AllAreKept":                   {me: "a", live: "ac", leaders: "aaac", vacant: "kkkn", campaign: "nnnn", giveUp: 2},
		"MoreInstancesThanShards":      {me: "a", live: "abc", leaders: "ab", campaign: "yy", giveUp: -1},
	} {
		v := shards.View{Me: c.me, Live: strings.Split(c.live, ""), Vacant: make([]bool, len(c.leaders)), Kept: make([]bool, len(c.leaders)), Uneven: c.uneven}
		for i, l := range c.leaders {
			v.Leaders = append(v.Leaders, strings.Trim(string(l), "-"))
			v.Vacant[i] = c.vacant != "" && c.vacant[i] == 'x'
			v.Kept[i] = c.vacant != "" && c.vacant[i] == 'k'
		}
		p := shards.Decide(v)
		got := ""
		for _, yes := range p.Campaign {
			got += map[bool]string{true: "y", false: "n"}[yes]
		}
		if got != c.campaign || p.GiveUp != c.giveUp {
			t.Errorf("%s: got campaign %s and shard %d given up, want %s and %d", name, got, p.GiveUp, c.campaign, c.giveUp)
		}
	}
}

// From any state, with instances that come and go, all lead their share after a few rounds, one of
// them at most hands over in each, and then nothing moves any more.
func TestDecideConverges(t *testing.T) {
	t.Parallel()
	for seed := range uint64(500) {
		rng := rand.New(rand.NewPCG(seed, 1))
		n := 2 + rng.IntN(15)
		var live []string
		for i := range 1 + rng.IntN(6) {
			live = append(live, string(rune('a'+i)))
		}
		leaders := make([]string, n)
		for i := range leaders {
			leaders[i] = append(slices.Clone(live), "")[rng.IntN(len(live)+1)]
		}
		moves, uneven := 0, map[string]bool{}
		for range 3 * n {
			var given []int
			tries := map[int][]string{}
			for _, me := range live {
				p := shards.Decide(shards.View{Me: me, Live: live, Leaders: leaders, Vacant: make([]bool, n), Kept: make([]bool, n), Uneven: uneven[me]})
				uneven[me] = p.Uneven
				if p.GiveUp >= 0 {
					given = append(given, p.GiveUp)
				}
				for i, yes := range p.Campaign {
					if yes && leaders[i] == "" {
						tries[i] = append(tries[i], me)
					}
				}
			}
			if len(given) > 1 {
				t.Fatalf("seed %d: %d instances hand over at once: %v", seed, len(given), leaders)
			}
			for i, who := range tries {
				leaders[i] = who[rng.IntN(len(who))]
			}
			for _, i := range given {
				leaders[i] = ""
				moves++
			}
		}
		led := map[string]int{}
		for _, l := range leaders {
			led[l]++
		}
		share := (n + len(live) - 1) / len(live)
		for _, name := range live {
			if led[name] > share || led[name] < n/len(live) {
				t.Errorf("seed %d: %s leads %d of %d shards among %d: %v", seed, name, led[name], n, len(live), leaders)
			}
		}
		if moves > n {
			t.Errorf("seed %d: %d hand-overs of %d shards", seed, moves, n)
		}
	}
}

// A hand-over that takes its leader longer than the next look is no refusal of the others.
func TestHandedOver(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		leader string
		epoch  int64
		want   shards.Outcome
	}{
		"Drains":        {"a", 7, shards.Underway},
		"TermHasEnded":  {"a", 0, shards.Underway},
		"Free":          {"", 0, shards.Underway},
		"Taken":         {"b", 0, shards.Taken},
		"NobodyTookIt":  {"a", 8, shards.Returned},
		"TakenByAThird": {"c", 0, shards.Taken},
	} {
		if got := shards.HandedOver("a", 7, c.leader, c.epoch); got != c.want {
			t.Errorf("%s: got %v, want %v", name, got, c.want)
		}
	}
}
