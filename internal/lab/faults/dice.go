package faults

import (
	"math/rand/v2"
	"time"
)

const second = time.Second

// Dice decides about faults by chance. Its decisions are a function of its seed.
type Dice struct{ *rand.Rand }

// Between returns a duration in whole milliseconds, each as likely as the others.
func (d *Dice) Between(low, high time.Duration) time.Duration {
	ms := int64((high - low) / time.Millisecond)
	return low + time.Duration(d.Int64N(ms+1))*time.Millisecond
}

// lasts is a Draw of nothing but a duration.
func lasts(low, high time.Duration) func(*Dice, *Params) {
	return func(d *Dice, p *Params) { p.Hold = d.Between(low, high) }
}
