package traffic

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"github.com/samuelhu324-dev/weft/internal/lab/rig"
	"github.com/samuelhu324-dev/weft/outbox"
)

const (
	// perTransaction is how many events a transaction of a stream has on average.
	perTransaction = 2.0
	pauseOnError   = 50 * time.Millisecond
	skipAfter      = time.Second
)

// Stream is everyday traffic: updates, deletes and re-creations by several writers that meet
// at the same entities. Servers that are away do not end it.
type Stream struct {
	App     *Application
	Writers int
	Rate    float64 // events per second
	Seed    uint64

	Entities []outbox.Key
	Hot      int                       // every other change is of the first so many, so that events of an entity meet
	Row      func(*rand.Rand, int) Row // what is written about an entity; nil: a text of 20 to some 2,000 bytes
	Late     func(outbox.Key) bool     // entities that are changed out of the order of versions, too; nil: none
	pause    sync.RWMutex              // held for reading by a transaction, for writing by a pause
}

// Run writes until ctx ends, which is no error.
func (s *Stream) Run(ctx context.Context) error {
	loop := Loop{Rate: s.Rate / perTransaction, Concurrency: s.Writers, Skip: skipAfter}
	return rig.Wrap("stream of changes", loop.everyday(ctx, s.Seed, s.operation))
}

// everyday runs operations, each with random numbers of its own, and rests after trouble that an
// application lives with.
func (l Loop) everyday(ctx context.Context, seed uint64, operation func(context.Context, *rand.Rand) error) error {
	return l.Run(ctx, func(ctx context.Context, n int, _ time.Time) error {
		err := operation(ctx, rand.New(rand.NewPCG(seed, uint64(n)+1)))
		if err == nil || !Temporary(err) {
			return err
		}
		_ = rig.Sleep(ctx, pauseOnError)
		return nil
	})
}

// Pause returns when no transaction of the stream is under way; none begins before Resume.
func (s *Stream) Pause() { s.pause.Lock() }

// Resume ends a pause.
func (s *Stream) Resume() { s.pause.Unlock() }

// operation changes one to three entities, some of them twice, or one of them late.
func (s *Stream) operation(ctx context.Context, random *rand.Rand) error {
	s.pause.RLock()
	defer s.pause.RUnlock()
	n := s.pick(random)
	if key := s.Entities[n]; s.Late != nil && s.Late(key) && random.IntN(3) > 0 {
		_, err := s.App.WriteLate(ctx, key, s.row(random, n), time.Duration(random.IntN(250))*time.Millisecond)
		return err
	}
	picked := map[int]bool{n: true}
	for range random.IntN(3) {
		picked[s.pick(random)] = true
	}
	var changes []Change
	for n := range picked {
		for range 1 + random.IntN(5)/4 {
			c := Change{Key: s.Entities[n], Op: outbox.Upsert, Row: s.row(random, n)}
			if random.IntN(7) == 0 {
				c = Change{Key: c.Key, Op: outbox.Delete, If: IfPresent}
			}
			changes = append(changes, c)
		}
	}
	_, err := s.App.Write(ctx, changes...)
	return err
}

func (s *Stream) pick(random *rand.Rand) int {
	if s.Hot > 0 && random.IntN(2) == 0 {
		return random.IntN(min(s.Hot, len(s.Entities)))
	}
	return random.IntN(len(s.Entities))
}

func (s *Stream) row(random *rand.Rand, n int) Row {
	if s.Row != nil {
		return s.Row(random, n)
	}
	var b strings.Builder
	for range 2 + random.IntN(1+random.IntN(200)) {
		fmt.Fprintf(&b, "%08x ", random.Uint32())
	}
	return Row{Text: b.String(), Rank: random.Float64()}
}

// EntityType is that of the entities of this package.
const EntityType = "block"

// NewKey names an entity that nobody has.
func NewKey() outbox.Key { return outbox.Key{Type: EntityType, ID: outbox.UUID(uuid.New())} }

// Entity returns the n-th of the entities that every stream of a program can know.
func Entity(n int) outbox.Key {
	var id uuid.UUID
	copy(id[:], "weftlab:")
	binary.BigEndian.PutUint64(id[8:], uint64(n))
	return outbox.Key{Type: EntityType, ID: outbox.UUID(id)}
}

// Entities returns the first n entities.
func Entities(n int) []outbox.Key {
	keys := make([]outbox.Key, n)
	for i := range keys {
		keys[i] = Entity(i)
	}
	return keys
}

// EveryThird selects one of three [Entities].
func EveryThird(k outbox.Key) bool {
	id, _ := k.ID.UUID()
	return id[15]%3 == 0
}

// Loop is an open loop of operations.
type Loop struct {
	Ops         int     // 0: until the context ends
	Rate        float64 // operations per second; 0 is as fast as possible
	Concurrency int     // operations under way at most
	// Skip leaves out operations that are late by more than this; 0: they are made up for as
	// fast as the connections allow.
	Skip time.Duration
}

// Run calls do for each operation when it is due. The end of ctx ends the loop, which is no
// error; the first error of do ends it, too.
func (l Loop) Run(ctx context.Context, do func(ctx context.Context, n int, due time.Time) error) error {
	workers, ctx := errgroup.WithContext(ctx)
	var next atomic.Int64
	began := time.Now()
	for range l.Concurrency {
		workers.Go(func() error {
			for {
				n := int(next.Add(1)) - 1
				if l.Ops > 0 && n >= l.Ops {
					return nil
				}
				due := time.Now()
				if l.Rate > 0 {
					due = began.Add(time.Duration(float64(n) / l.Rate * float64(time.Second)))
					if wait := time.Until(due); wait > 0 {
						_ = rig.Sleep(ctx, wait)
					}
				}
				if ctx.Err() != nil {
					return nil
				}
				if l.Skip > 0 && time.Since(due) > l.Skip {
					continue
				}
				if err := do(ctx, n, due); err != nil {
					return err
				}
			}
		})
	}
	return workers.Wait()
}
