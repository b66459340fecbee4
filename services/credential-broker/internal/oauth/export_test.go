package oauth

import (
	"context"
	"time"
)

// Forget lets tests have a Keeper look at once, where Run would after a second.
func (k *Keeper) Forget(ref Ref) { k.forget(ref) }

// DropChanged is one search of Run for what others have changed, so long after the last one.
func (k *Keeper) DropChanged(ctx context.Context, after time.Duration) error {
	now := time.Now()
	return k.dropChanged(ctx, missed(now.Add(-after), now))
}
