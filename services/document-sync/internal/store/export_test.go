package store

// Queued returns how many updates wait for the current transaction to end.
func (s *Store) Queued() int {
	n := 0
	for _, g := range []*group{s.free, s.taken} {
		g.mu.Lock()
		n += len(g.queue)
		g.mu.Unlock()
	}
	return n
}

// GroupUpdates is the maximum number of updates in a transaction.
const GroupUpdates = groupUpdates
