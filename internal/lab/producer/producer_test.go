package producer

import (
	"context"
	"testing"
	"time"

	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/outbox"
)

func TestMain(m *testing.M) { testenv.MainNoServers(m) }

// TestNobodyAnswers holds that a producer goes on without its database, and takes
// nothing for committed.
func TestNobodyAnswers(t *testing.T) {
	t.Parallel()
	p, err := New(t.Context(), "postgres://nobody@127.0.0.1:1/none?sslmode=disable", 1)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if err := p.Write(t.Context(), []Change{Upsert(Entity(0)), Delete(Entity(1))}); err == nil {
		t.Error("write without a server: got no error")
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		p.Run(ctx)
	}()
	testenv.Eventually(t, time.Minute, func() bool { return p.Refusals() > writers }, "more refusals")
	stop()
	<-ended
	if got := p.Ledger(); len(got) != 0 {
		t.Errorf("ledger: got %d events, want none", len(got))
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := p.Outage(ctx, time.Now()); err == nil {
		t.Error("outage without an answer: got no error")
	}
}

func TestVersionsAndEntities(t *testing.T) {
	t.Parallel()
	p := &Producer{}
	last := p.version()
	for range 1000 {
		v := p.version()
		if v <= last {
			t.Fatalf("version %d after %d", v, last)
		}
		last = v
	}
	ahead := time.Now().Add(time.Hour).UnixMicro()
	p.SkipTo(ahead)
	p.SkipTo(ahead - 5)
	if v := p.version(); v != ahead+1 {
		t.Errorf("version after a skip to %d: got %d, want the next one", ahead, v)
	}
	seen := map[outbox.Key]bool{}
	for n := range uint64(Entities + 3) {
		seen[Entity(n)] = true
	}
	if len(seen) != Entities+3 {
		t.Errorf("entities: got %d different ones, want %d", len(seen), Entities+3)
	}
}
