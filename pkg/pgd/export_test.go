package pgd

// Err returns why no server is running, nil if one is.
func (k *Kept) Err() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.err
}
