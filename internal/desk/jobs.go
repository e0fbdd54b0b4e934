package desk

import (
	"context"
	"errors"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/samuelhu324-dev/weft/internal/replay"
)

const (
	jobsAtOnce = 4
	jobsKept   = 100
	jobQuick   = time.Second // an action that takes no longer shows its result at once
)

// The states of a job.
const (
	jobRunning = "running"
	jobDone    = "done"
	jobFailed  = "failed"
)

// Job is an action that somebody has started on this instance, and its result. Names and units
// stay; fields may be added.
type Job struct {
	ID         int64      `json:"id"`
	Action     string     `json:"action"`
	Projection string     `json:"projection"`
	What       string     `json:"what"`
	By         string     `json:"by"`
	Why        string     `json:"why"`
	StartedAt  time.Time  `json:"started_at"` // clock of this host
	EndedAt    *time.Time `json:"ended_at"`
	State      string     `json:"state"` // running, done, failed
	Result     string     `json:"result"`

	Matched int64 `json:"matched"`
	Sent    int64 `json:"sent"` // or discarded
	Skipped int64 `json:"skipped"`
	Done    int64 `json:"done"`
	Failed  int64 `json:"failed_again"`
	Open    int64 `json:"open"`
}

// jobs keeps the newest actions of this instance. Workers of Run take them from queue.
type jobs struct {
	mu    sync.Mutex
	kept  []*Job // the oldest first
	last  int64
	queue chan func(context.Context)
}

// add keeps a job, and forgets the oldest that has ended.
func (j *jobs) add(job Job) *Job {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.last++
	job.ID, job.State, job.StartedAt = j.last, jobRunning, time.Now().UTC()
	if len(j.kept) >= jobsKept {
		for i, old := range j.kept {
			if old.EndedAt != nil {
				j.kept = append(j.kept[:i:i], j.kept[i+1:]...)
				break
			}
		}
	}
	j.kept = append(j.kept, &job)
	return &job
}

// remove forgets the newest job, which no worker took.
func (j *jobs) remove(job *Job) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for i := range j.kept {
		if j.kept[i] == job {
			j.kept = append(j.kept[:i:i], j.kept[i+1:]...)
			return
		}
	}
}

// change changes a job, which viewers read.
func (j *jobs) change(f func()) {
	j.mu.Lock()
	defer j.mu.Unlock()
	f()
}

// list returns copies, the newest first; of the one with an id when that is not 0.
func (j *jobs) list(id int64) []Job {
	j.mu.Lock()
	defer j.mu.Unlock()
	out := []Job{}
	for i := len(j.kept) - 1; i >= 0; i-- {
		if id == 0 || j.kept[i].ID == id {
			out = append(out, *j.kept[i])
		}
	}
	return out
}

// work runs jobs, one after the other, until ctx ends.
func (j *jobs) work(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case f := <-j.queue:
			f(ctx)
		}
	}
}

// start hands an action to a worker and waits a short while for its end. It returns nil when
// all workers are busy.
func (s *Server) start(ctx context.Context, a action, p plan, by, why string) *Job {
	job := s.jobs.add(Job{Action: p.Action, Projection: p.Projection, What: p.What, By: by, Why: why, Matched: p.Count})
	ended := make(chan struct{})
	run := func(ctx context.Context) {
		defer close(ended)
		result, err := a.run(s, ctx, p, job)
		s.finish(job, result, err)
	}
	select {
	case s.jobs.queue <- run:
	default:
		s.jobs.remove(job)
		return nil
	}
	quick := time.NewTimer(jobQuick)
	defer quick.Stop()
	select {
	case <-ended:
	case <-quick.C:
	case <-ctx.Done():
	}
	return job
}

// finish records how a job ended.
func (s *Server) finish(job *Job, result string, err error) {
	state, now := jobDone, time.Now().UTC()
	if err != nil {
		state = jobFailed
		text := err.Error()
		if !errors.As(err, new(refused)) {
			text = s.o.Diagnose(err)
		}
		if result != "" {
			result += "; "
		}
		result += text
	}
	s.reader.expire()
	s.jobs.change(func() { job.State, job.Result, job.EndedAt = state, result, &now })
	s.log.Info("action on the page ended", zap.String("event", "desk.acted"), zap.String("action", job.Action), zap.String("projection", job.Projection),
		zap.String("by", job.By), zap.String("state", state), zap.String("outcome", result))
}

// progress shows how far a replay is.
func (s *Server) progress(job *Job) func(replay.Progress) {
	return func(p replay.Progress) {
		s.jobs.change(func() {
			job.Matched, job.Sent, job.Skipped, job.Done, job.Failed, job.Open = p.Matched, p.Sent, p.Skipped, p.Done, p.Failed, p.Open
		})
	}
}
