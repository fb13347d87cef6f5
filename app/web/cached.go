package web

import (
	"context"
	"sync"
	"time"
)

// loadTimeout bounds one load: a reader that waits longer has gone.
const loadTimeout = 5 * time.Second

// cached keeps a value for a while, so that the number of readers does not
// decide how often the database works. While it is loaded, readers wait.
type cached[T any] struct {
	mu    sync.Mutex
	at    time.Time // zero before the first load
	value T
}

// get returns a value that is at most ttl old. load does not end with the
// request that happens to cause it: others may wait for the same value.
func (c *cached[T]) get(ctx context.Context, now func() time.Time, ttl time.Duration, load func(context.Context) T) T {
	c.mu.Lock()
	defer c.mu.Unlock()
	if age := now().Sub(c.at); !c.at.IsZero() && age >= 0 && age < ttl {
		return c.value
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), loadTimeout)
	defer cancel()
	c.value = load(ctx)
	c.at = now()
	return c.value
}
