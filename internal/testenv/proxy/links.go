package proxy

import (
	"errors"
	"time"
)

// Links are the links to all nodes of a cluster. A method acts on one link after the other, goes
// on after an error, and returns all errors joined.
type Links []*Link

func (l Links) each(do func(*Link) error) error {
	var errs []error
	for _, link := range l {
		errs = append(errs, do(link))
	}
	return errors.Join(errs...)
}

// Latency calls [Link.Latency] on each link.
func (l Links) Latency(d, jitter time.Duration) error {
	return l.each(func(link *Link) error { return link.Latency(d, jitter) })
}

// ResetAfter calls [Link.ResetAfter] on each link.
func (l Links) ResetAfter(bytes int64) error {
	return l.each(func(link *Link) error { return link.ResetAfter(bytes) })
}

// HalfOpen calls [Link.HalfOpen] on each link.
func (l Links) HalfOpen() error { return l.each((*Link).HalfOpen) }

// Cut calls [Link.Cut] on each link.
func (l Links) Cut() error { return l.each((*Link).Cut) }

// Heal calls [Link.Heal] on each link.
func (l Links) Heal() error { return l.each((*Link).Heal) }

// Close calls [Link.Close] on each link.
func (l Links) Close() error { return l.each((*Link).Close) }
