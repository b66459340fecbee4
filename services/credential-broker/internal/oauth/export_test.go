package oauth

import (
	"context"
	"time"
)

// Forget makes a Keeper read the store at once, which Run does after a second.
func (k *Keeper) Forget(ref Ref) { k.forget(ref) }

// DropChanged is one search of Run for what others have changed, so long after the last one.
func (k *Keeper) DropChanged(ctx context.Context, after time.Duration) error {
	now := time.Now()
	return k.dropChanged(ctx, missed(now.Add(-after), now))
}
