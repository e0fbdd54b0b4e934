package chaos

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/samuelhu324-dev/weft/internal/lab/rig"
	"github.com/samuelhu324-dev/weft/internal/lab/traffic"
	"github.com/samuelhu324-dev/weft/outbox"
)

const (
	watchedEntities = 20
	chaosSearches   = 5 * time.Millisecond // from one search to the next
	rebuildLook     = 200 * time.Millisecond
	rebuildTimeout  = 5 * time.Minute // of the last one, once everything is healed
	// rebuildPatience bounds the life of a command that follows a rebuild: it is killed.
	rebuildPatience = 4 * time.Second
	// severalRebuilds is what a run may take with one rebuild only. In calm one takes less than
	// [rebuildPause].
	severalRebuilds = 5 * time.Minute
)

// rebuilds has the index built again all the time, and searches in it. Its commands are killed at
// random, and some rebuilds are paused or aborted.
type rebuilds struct {
	*run
	searcher *traffic.Searcher
	random   *rand.Rand
	counted  time.Time // end of the last rebuild that was counted
	next     string    // what else is asked of this rebuild, once: pause, abort, or nothing
	looks    int       // until then

	done, aborted, killed int
	failures              []string
}

// openRebuilds writes the entities that are searched for.
func (r *run) openRebuilds() {
	r.rebuilds = &rebuilds{run: r, random: rand.New(rand.NewPCG(r.opts.Seed, 1))}
	r.rebuilds.searcher = &traffic.Searcher{Elastic: r.Elastic, Index: r.Index, Every: chaosSearches}
	if r.domain.watched != nil {
		keys := rig.Try(r.domain.watched(r.Ctx)).Must(r)
		r.rebuilds.searcher.Watched = rig.Map(keys, outbox.Key.String)
	}
	r.drained()
	r.MustDo("refresh", r.Elastic.Do(r.Ctx, http.MethodPost, "/"+url.PathEscape(r.Index)+"/_refresh", nil, nil))
}

// Run asks for one rebuild after the other until ctx ends. Servers that are away do not end it.
func (b *rebuilds) Run(ctx context.Context) {
	for ctx.Err() == nil {
		b.step(ctx)
		_ = rig.Sleep(ctx, rebuildLook)
	}
}

// step looks at the newest rebuild, and does what comes next.
func (b *rebuilds) step(ctx context.Context) {
	row, err := outbox.ReadRebuild(ctx, b.Pool, b.domain.projection, rig.QueryTimeout)
	if err != nil {
		return
	}
	b.count(row)
	switch {
	case row.Phase == outbox.RebuildDone && row.OldIndex != "":
		b.command(ctx, "drop-old")
	case row.Phase.Ended():
		b.next = []string{"", "", "", "", "", "", "", "pause", "pause", "abort"}[b.random.IntN(10)]
		b.looks = b.random.IntN(10)
		b.command(ctx)
	case row.Paused:
		b.command(ctx, "resume")
	case b.looks > 0:
		b.looks--
	case b.next != "":
		b.command(ctx, b.next)
		b.next = ""
	}
}

// command runs weft rebuild, and kills it when it has followed for a while.
func (b *rebuilds) command(ctx context.Context, sub ...string) {
	limited, cancel := context.WithTimeout(ctx, time.Duration(1+b.random.Int64N(int64(rebuildPatience))))
	defer cancel()
	args := append(append([]string{"rebuild"}, sub...), b.domain.projection, "--by", "weftlab", "--why", "chaos")
	if _, err := b.Fleet.Output(limited, args...); err != nil && limited.Err() != nil && ctx.Err() == nil {
		b.killed++
	}
}

// count counts a rebuild that has ended, once.
func (b *rebuilds) count(row outbox.Rebuild) {
	if row.Finished == nil || row.Finished.Equal(b.counted) {
		return
	}
	b.counted = *row.Finished
	switch row.Phase {
	case outbox.RebuildDone:
		b.done++
		b.screen.Line("      rebuild %d: %s is in use", b.done, row.NewIndex)
	case outbox.RebuildAborted:
		b.aborted++
	default:
		b.failures = append(b.failures, "a rebuild failed: "+row.Note)
	}
}

// finish waits for the end of the last rebuild, and has what it replaced deleted. Everything is
// healed: a command that fails now has no excuse.
func (b *rebuilds) finish() {
	var last outbox.Rebuild
	b.Must(rig.Await(b.Ctx, rebuildTimeout, rebuildLook, "end of the last rebuild", func(ctx context.Context) error {
		if err := b.Supervise(ctx); err != nil {
			return err
		}
		row, err := outbox.ReadRebuild(ctx, b.Pool, b.domain.projection, rig.QueryTimeout)
		if err != nil {
			return err
		}
		b.count(row)
		if row.Paused && !row.Phase.Ended() {
			b.command(ctx, "resume")
		}
		if !row.Phase.Ended() || row.Asked != "" {
			return fmt.Errorf("it is %s: %s", row.Phase, row.Note)
		}
		last = row
		return nil
	}))
	b.Must(b.dropOld(b.Ctx, last))
}

// dropOld has the index deleted that a rebuild has replaced and kept.
func (b *rebuilds) dropOld(ctx context.Context, row outbox.Rebuild) error {
	if row.Phase != outbox.RebuildDone || row.OldIndex == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, calmTimeout)
	defer cancel()
	if _, err := b.Fleet.Output(ctx, "rebuild", "drop-old", b.domain.projection, "--by", "weftlab", "--why", "chaos"); err != nil {
		return err
	}
	names, err := b.Elastic.Indices(ctx, row.OldIndex)
	return rig.Want(err, !slices.Contains(names, row.OldIndex), "the old index is still there: %s", row.OldIndex)
}
