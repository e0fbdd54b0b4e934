package move

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/internal/testenv/proxy"
	"github.com/samuelhu324-dev/weft/leader"
)

// The test starts itself as the command that it stops.
const (
	fromEnv = "WEFT_TEST_MOVE_FROM"
	toEnv   = "WEFT_TEST_MOVE_TO"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// TestAsCommand is what the other process runs.
func TestAsCommand(t *testing.T) {
	t.Parallel()
	from := os.Getenv(fromEnv)
	if from == "" {
		return
	}
	o := (&world{t: t, from: from, to: os.Getenv(toEnv)}).there()
	o.silence = 4 * time.Second
	_, err := move(t.Context(), o)
	t.Log(err)
}

// A command that is stopped keeps its locks no longer than the servers wait for a word of it, whatever it was
// doing. Another one moves the shard meanwhile, and the first one undoes nothing when it goes on.
func TestStoppedMoveLetsGo(t *testing.T) {
	t.Parallel()
	type steps struct{ reached, stopped, repeat func() }
	for name, arrange := range map[string]func(w *world) steps{
		"Locking": func(w *world) steps {
			tx := w.hold(w.src, "update s_1.search_index set text = text")
			return steps{func() { w.waits(w.src, "relation") }, func() { _ = tx.Rollback(w.t.Context()) }, func() {}}
		},
		"SourceIdle": func(w *world) steps {
			g := w.gate(w.dst, "s_1.search_index", false)
			return steps{g.reached, func() {}, g.open}
		},
		"SourceSending": func(w *world) steps { // more than the sockets take
			w.exec(w.src, "update s_1.search_index set text = repeat('x', 1000000)")
			g := w.gate(w.dst, "s_1.search_index", false)
			return steps{func() {
				g.reached()
				testenv.Eventually(w.t, func() bool {
					return w.number(w.src, "select count(*) from pg_stat_activity where datname = current_database() and application_name = 'weft/shards' and wait_event = 'ClientWrite'") > 0
				}, "the source waits for the command")
			}, func() {}, func() {
				g.open()
				w.exec(w.src, "update s_1.search_index set text = left(text, 100)")
			}}
		},
		"Committing": func(w *world) steps {
			g := w.gate(w.src, "s_1.weft_audit", true)
			return steps{g.reached, func() {}, g.open}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := setup(t)
			w.structure(t)
			step := arrange(w)
			var said bytes.Buffer
			cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestAsCommand$", "-test.v")
			cmd.Env, cmd.Stdout = append(os.Environ(), fromEnv+"="+w.from, toEnv+"="+w.to), &said
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { t.Log(said.String()) })
			step.reached()
			if err := cmd.Process.Signal(syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			step.stopped()
			within, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if err := write(within, w.src, w.entity(moved)); err != nil {
				t.Errorf("write at the source: %v", err)
			}
			testenv.Eventually(t, func() bool {
				return w.number(w.src, "select count(*) from pg_locks where locktype = 'advisory' and database = (select oid from pg_database where datname = current_database()) and objid = ($1::bigint & 4294967295)::oid", leader.Key("weft-shard-1")) == 0
			}, "the lock of the group is free")
			step.repeat()
			w.mustMove(w.there())
			w.home(w.dst, w.src)
			if err := cmd.Process.Signal(syscall.SIGCONT); err != nil {
				t.Fatal(err)
			}
			if err := cmd.Wait(); err != nil {
				t.Error(err)
			}
			if got := said.String(); !strings.Contains(got, "heard nothing of this command for 4s") && name != "Committing" || !strings.Contains(got, "epeat ") {
				t.Errorf("the command that was stopped says %q, want why it ended", got)
			}
			w.home(w.dst, w.src)
		})
	}
}

// A word that gets no answer in time says the same as the end of the session: which of the two a command that
// was stopped finds first is chance.
func TestWordWithoutAnAnswerIsSilence(t *testing.T) {
	t.Parallel()
	url := testenv.Database(t)
	link, err := proxy.NewLink(address(t, url)[:strings.Index(address(t, url), "/")])
	if err != nil {
		t.Fatal(err)
	}
	defer link.Close()
	if url, err = link.Through(url); err != nil {
		t.Fatal(err)
	}
	ctx, lost := context.WithCancelCause(t.Context())
	_, end, err := (&mover{Options: Options{silence: 300 * time.Millisecond}}).session(ctx, url, lost)
	if err != nil {
		t.Fatal(err)
	}
	if err := link.HalfOpen(); err != nil {
		t.Fatal(err)
	}
	<-ctx.Done()
	if err := context.Cause(ctx); !errors.Is(err, ErrSilent) {
		t.Errorf("the session ended with %q, want %q in it", err, ErrSilent)
	}
	if err := link.Heal(); err != nil {
		t.Fatal(err)
	}
	end()
}
