package demo

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

const (
	streamWriters = 4
	// streamPause is that of one writer between two transactions, which carry one to
	// four events: some hundred events a second in all.
	streamPause = 30 * time.Millisecond
	// hotDocuments get every other edit, so that several events of one entity meet.
	hotDocuments = 100
)

// stream is the everyday traffic: updates, deletes and re-creations by several
// writers that meet at the same documents.
type stream struct {
	source *source
	docs   []Document
	seed   uint64

	mu      sync.Mutex
	removed []int // candidates for a re-creation, by index into docs
}

// run edits until ctx ends, which is no error.
func (s *stream) run(ctx context.Context) error {
	g, gctx := errgroup.WithContext(ctx)
	for w := range streamWriters {
		g.Go(func() error { return s.write(gctx, rand.New(rand.NewPCG(s.seed, uint64(w)))) })
	}
	if err := g.Wait(); err != nil {
		return fmt.Errorf("stream of edits: %w", err)
	}
	return nil
}

func (s *stream) write(ctx context.Context, random *rand.Rand) error {
	tick := time.NewTicker(streamPause)
	defer tick.Stop()
	for n := 1; ; n++ {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		// What has begun is brought to its end: a commit that is cut off has an
		// unknown fate.
		if err := s.edit(context.WithoutCancel(ctx), random, n); err != nil {
			return err
		}
	}
}

func (s *stream) edit(ctx context.Context, random *rand.Rand, n int) error {
	picked := s.pick(random)
	docs := make([]Document, len(picked))
	for i, p := range picked {
		docs[i] = s.docs[p]
		docs[i].Text += fmt.Sprintf("\n\nEdit %d by %x.", n, random.Uint32())
	}
	switch dice := random.IntN(100); {
	case dice < 12:
		if _, err := s.source.remove(ctx, docs); err != nil {
			return err
		}
		s.mu.Lock()
		s.removed = append(s.removed, picked...)
		s.mu.Unlock()
		return nil
	case dice < 24:
		if again := s.takeRemoved(len(docs)); len(again) > 0 {
			_, err := s.source.create(ctx, again)
			return err
		}
	}
	_, err := s.source.update(ctx, docs)
	return err
}

// pick returns one to four different documents.
func (s *stream) pick(random *rand.Rand) []int {
	most := len(s.docs)
	if random.IntN(2) == 0 {
		most = min(most, hotDocuments)
	}
	chosen := map[int]bool{}
	var out []int
	for range 1 + random.IntN(4) {
		if i := random.IntN(most); !chosen[i] {
			chosen[i] = true
			out = append(out, i)
		}
	}
	return out
}

func (s *stream) takeRemoved(most int) []Document {
	s.mu.Lock()
	defer s.mu.Unlock()
	chosen := map[int]bool{}
	var out []Document
	for len(s.removed) > 0 && len(out) < most {
		last := len(s.removed) - 1
		if i := s.removed[last]; !chosen[i] {
			chosen[i] = true
			out = append(out, s.docs[i])
		}
		s.removed = s.removed[:last]
	}
	return out
}
