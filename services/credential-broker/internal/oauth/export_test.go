package oauth

// Forget lets tests have a Keeper look at once, where Run would after a second.
func (k *Keeper) Forget(ref Ref) { k.forget(ref) }
