package proxy

import (
	"errors"
	"time"
)

// Links are those to all nodes of a cluster, with the same fault on each.
type Links []*Link

func (l Links) each(do func(*Link) error) error {
	var errs []error
	for _, link := range l {
		errs = append(errs, do(link))
	}
	return errors.Join(errs...)
}

// Latency is [Link.Latency] of each.
func (l Links) Latency(d, jitter time.Duration) error {
	return l.each(func(link *Link) error { return link.Latency(d, jitter) })
}

// ResetAfter is [Link.ResetAfter] of each.
func (l Links) ResetAfter(bytes int64) error {
	return l.each(func(link *Link) error { return link.ResetAfter(bytes) })
}

// HalfOpen is [Link.HalfOpen] of each.
func (l Links) HalfOpen() error { return l.each((*Link).HalfOpen) }

// Cut is [Link.Cut] of each.
func (l Links) Cut() error { return l.each((*Link).Cut) }

// Heal is [Link.Heal] of each.
func (l Links) Heal() error { return l.each((*Link).Heal) }

// Close is [Link.Close] of each.
func (l Links) Close() error { return l.each((*Link).Close) }
