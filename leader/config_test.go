package leader

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

func noDial(context.Context) (*pgx.Conn, error) { return nil, context.Canceled }

func TestNewReportsEveryViolation(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		cfg  Config
		want []string // one part of each line
	}{
		"Defaults":  {Config{Group: "weft", Instance: "host-1:42"}, nil},
		"LongNames": {Config{Group: strings.Repeat("g", 120), Instance: strings.Repeat("ü", 120)}, nil},
		"Names":     {Config{Group: "a/b", Instance: ""}, []string{`group "a/b"`, `instance ""`}},
		"NamesTooLong": {Config{Group: strings.Repeat("g", 121), Instance: strings.Repeat("ü", 121)},
			[]string{"group", "instance"}},
		"ControlCharacter": {Config{Group: "g", Instance: "a\x00b"}, []string{"control"}},
		"GroupNotASCII":    {Config{Group: "gruppe-ü", Instance: "i"}, []string{"ASCII"}},
		"Order": {Config{Group: "g", Instance: "i", Heartbeat: 3 * time.Second, Trust: 3 * time.Second, IdleSession: 3 * time.Second},
			[]string{"heartbeat (3s) must be shorter than trust (3s)", "trust (3s) must be shorter than idle session (3s)"}},
		"Negative": {Config{Group: "g", Instance: "i", Poll: -1, Heartbeat: -1},
			[]string{"poll (-1ns)", "heartbeat (-1ns)"}},
		"PollOutlivesSession": {Config{Group: "g", Instance: "i", Poll: 4200 * time.Millisecond}, []string{"poll (4.2s, at most 5.04s"}},
		"IdleSessionRange": {Config{Group: "g", Instance: "i", Poll: time.Millisecond, Heartbeat: time.Millisecond, Trust: 2 * time.Millisecond, IdleSession: 3 * time.Millisecond},
			[]string{"between 100ms and 24h"}},
		"Everything": {Config{Poll: -1, Heartbeat: -1, Trust: -2, IdleSession: -3},
			[]string{"group", "instance", "poll", "heartbeat (-1ns) must be positive", "shorter than trust", "shorter than idle", "longest", "between"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := New(tc.cfg, noDial, nil, prometheus.NewPedanticRegistry())
			if len(tc.want) == 0 {
				if err != nil {
					t.Errorf("New: got %v, want nil", err)
				}
				return
			}
			if err == nil {
				t.Fatalf("New: got nil, want %d violations", len(tc.want))
			}
			for _, part := range tc.want {
				if part == "longest" {
					part = "with jitter"
				}
				if !strings.Contains(err.Error(), part) {
					t.Errorf("New: got %q, want it to say %q", err, part)
				}
			}
			if got := strings.Count(err.Error(), "\n") + 1; got != len(tc.want) {
				t.Errorf("violations: got %d, want %d: %v", got, len(tc.want), err)
			}
		})
	}
}

// The key and the prefix are what two versions of weft meet by.
func TestKeyIsPinned(t *testing.T) {
	t.Parallel()
	for group, want := range map[string]int64{
		"weft":   -1862271278807493571,
		"orders": 2023957755765852388,
	} {
		if got := Key(group); got != want {
			t.Errorf("Key(%q): got %d, want %d", group, got, want)
		}
	}
}

func TestAppName(t *testing.T) {
	t.Parallel()
	if got, want := AppName("weft", "host-1:42", "lock"), "weft/weft/host-1:42/lock"; got != want {
		t.Errorf("AppName: got %q, want %q", got, want)
	}
	long := strings.Repeat("x", 119)
	seen := map[string]bool{}
	for _, group := range []string{"g", long + "1", long + "2"} {
		for _, instance := range []string{"i", long + "1", long + "2"} {
			name := AppName(group, instance, "work")
			if len(name) > 63 {
				t.Errorf("AppName: got %d bytes (%s), want at most 63", len(name), name)
			}
			if !strings.HasPrefix(name, appPrefix(group)) || !strings.HasSuffix(name, "/work") {
				t.Errorf("AppName: got %q, want prefix %q and suffix /work", name, appPrefix(group))
			}
			seen[name] = true
		}
	}
	if len(seen) != 9 {
		t.Errorf("different names: got %d, want 9", len(seen))
	}
}

func TestSessionConfig(t *testing.T) {
	t.Parallel()
	base, err := pgx.ParseConfig("postgres://u@h1,h2/db?application_name=app&statement_timeout=7&synchronous_commit=off")
	if err != nil {
		t.Fatal(err)
	}
	got := SessionConfig(base, Config{Group: "g", Instance: "i"})
	for name, want := range map[string]string{
		"application_name": "weft/g/i/lock", "idle_session_timeout": "5000",
		"idle_in_transaction_session_timeout": "5000", "statement_timeout": "3000", "lock_timeout": "1000", "synchronous_commit": "on",
		"tcp_keepalives_idle": "5", "tcp_keepalives_interval": "2", "tcp_keepalives_count": "3", "tcp_user_timeout": "10000",
	} {
		if got.RuntimeParams[name] != want {
			t.Errorf("%s: got %q, want %q", name, got.RuntimeParams[name], want)
		}
	}
	if base.RuntimeParams["application_name"] != "app" || base.RuntimeParams["statement_timeout"] != "7" {
		t.Errorf("base was changed: %v", base.RuntimeParams)
	}
	if got.ValidateConnect == nil {
		t.Error("two hosts: got no check for a writable server, want one")
	}
	one, err := pgx.ParseConfig("postgres://u@h1/db")
	if err != nil {
		t.Fatal(err)
	}
	if SessionConfig(one, Config{Group: "g", Instance: "i"}).ValidateConnect != nil {
		t.Error("one host: got a check in the driver, want the start-up proof to tell")
	}
}

func TestMetrics(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewPedanticRegistry()
	if _, err := New(Config{Group: "g", Instance: "i"}, noDial, nil, reg); err != nil {
		t.Fatal(err)
	}
	problems, err := testutil.GatherAndLint(reg)
	if err != nil || len(problems) > 0 {
		t.Errorf("lint: got %v, %v; want none", problems, err)
	}
	for name, want := range map[string]int{
		"weft_leader_is_leader": 1, "weft_leader_draining": 1, "weft_leader_epoch": 1, "weft_leader_transitions_total": 4,
		"weft_leader_step_downs_total": 9, "weft_leader_heartbeat_duration_seconds": 1, "weft_leader_sessions_ended_total": 2,
	} {
		if got, err := testutil.GatherAndCount(reg, name); err != nil || got != want {
			t.Errorf("%s before anything happened: got %d series (%v), want %d", name, got, err, want)
		}
	}
	if _, err := New(Config{Group: "g", Instance: "i"}, noDial, nil, reg); err == nil {
		t.Error("second elector on one registry: got nil, want an error")
	}
}
