// Package recent remembers what was put lately, within a bound and without a clock. It
// keeps two generations: when the young one is full, it becomes the old one, and what was
// not put again since is dropped with the next.
package recent

// Map holds values of the keys that were put last. Its zero value is empty. It is not safe
// for concurrent use.
type Map[K comparable, V any] struct{ young, old map[K]V }

// Get returns what was put last under a key; false where nothing was, or it was too long ago.
func (m *Map[K, V]) Get(k K) (V, bool) {
	v, ok := m.young[k]
	if !ok {
		v, ok = m.old[k]
	}
	return v, ok
}

// Put remembers a value. The newest keys, as many as least, are not forgotten; at most twice
// as many are held.
func (m *Map[K, V]) Put(k K, v V, least int) {
	if _, ok := m.young[k]; !ok && len(m.young) >= least {
		m.old, m.young = m.young, nil
	}
	if m.young == nil {
		m.young = map[K]V{}
	}
	m.young[k] = v
}

// Len returns how many values are held.
func (m *Map[K, V]) Len() int { return len(m.young) + len(m.old) }
