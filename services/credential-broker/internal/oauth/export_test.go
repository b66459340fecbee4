package oauth

import (
	"context"
	"time"
)

// Forget lets tests have a Keeper look at once, where Run would after a second.
func (k *Keeper) Forget(ref Ref) { k.forget(ref) }

// Look is one look of Run for what others have changed, so long after the one before.
func (k *Keeper) Look(ctx context.Context, after time.Duration) error {
	now := time.Now()
	return k.look(ctx, missed(now.Add(-after), now))
}
