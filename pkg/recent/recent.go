// Package recent has a bounded map of recent entries. It keeps two generations: when the young
// one is full, it replaces the old one, whose entries are dropped unless they were put again.
package recent

// Map holds the most recent entries. The zero value is empty. It is not safe for concurrent
// use.
type Map[K comparable, V any] struct{ young, old map[K]V }

// Get returns a key's value, and whether the map holds one.
func (m *Map[K, V]) Get(k K) (V, bool) {
	v, ok := m.young[k]
	if !ok {
		v, ok = m.old[k]
	}
	return v, ok
}

// Put stores a value. The map holds at least the newest least keys, and at most twice as many.
func (m *Map[K, V]) Put(k K, v V, least int) {
	if _, ok := m.young[k]; !ok && len(m.young) >= least {
		m.old, m.young = m.young, nil
	}
	if m.young == nil {
		m.young = map[K]V{}
	}
	m.young[k] = v
}

// Len returns the number of entries.
func (m *Map[K, V]) Len() int { return len(m.young) + len(m.old) }
