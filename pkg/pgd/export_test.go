package pgd

// Err returns why no server is running, nil if one is.
func (s *Supervised) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}
