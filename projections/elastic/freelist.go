package elastic

import "sync"

// FreeList keeps the large buffers of finished batches for the next ones, at most as many as
// there are batches encoded at the same time. Unlike a [sync.Pool] it keeps them through a
// garbage collection: buffers of megabytes that grow anew for each batch are what makes
// collections frequent. The zero value is empty. It is safe for concurrent use.
type FreeList[T any] struct {
	mu   sync.Mutex
	free []*T
}

const maxFree = 2

// Get returns a value that was put back, or a new one.
func (l *FreeList[T]) Get() *T {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := len(l.free) - 1
	if n < 0 {
		return new(T)
	}
	x := l.free[n]
	l.free = l.free[:n]
	return x
}

// Put gives x back. The caller must not use it any more.
func (l *FreeList[T]) Put(x *T) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.free) < maxFree {
		l.free = append(l.free, x)
	}
}
