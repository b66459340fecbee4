package store

// Queued returns how many updates wait for the transaction that is under way.
func (s *Store) Queued() int {
	n := 0
	for _, g := range []*group{s.free, s.taken} {
		g.mu.Lock()
		n += len(g.queue)
		g.mu.Unlock()
	}
	return n
}

// GroupUpdates is how many updates one transaction has at most.
const GroupUpdates = groupUpdates
