package yjs

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

// TestOriginsInAnyOrder checks that structs with any units as origins make the same lists in whatever order
// they arrive, and so do the updates that a replica sends for them.
func TestOriginsInAnyOrder(t *testing.T) {
	t.Parallel()
	for seed := range uint64(4000) {
		r := rand.New(rand.NewPCG(seed, 11))
		updates := randomStructs(r, 3+r.IntN(6))
		var want string
		for order := range 4 {
			d, follower := New(Options{}), New(Options{})
			d.OnUpdate(func(u *Update) {
				if err := follower.ApplyUpdate(u.V1(), nil); err != nil {
					t.Errorf("seed %d: its updates: %v", seed, err)
				}
			})
			for i, at := range r.Perm(len(updates)) {
				if order == 0 {
					at = i
				}
				if err := d.ApplyUpdate(updates[at], nil); err != nil {
					t.Fatalf("seed %d: %v", seed, err)
				}
			}
			loaded := New(Options{})
			if err := loaded.ApplyUpdate(d.EncodeStateAsUpdate(nil), nil); err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
			for _, d := range []*Doc{d, follower, loaded} {
				if err := Check(d); err != nil {
					t.Fatalf("seed %d: %v", seed, err)
				}
				got := fmt.Sprintf("%q %q %q", d.Text("t").String(), d.Array("a").Values(), d.Text("t").Attributes())
				if want == "" {
					want = got
				}
				if got != want {
					t.Fatalf("seed %d: order %d makes %s, want %s", seed, order, got, want)
				}
			}
		}
	}
}

// randomStructs returns updates of one struct each, of few clients in few lists.
func randomStructs(r *rand.Rand, n int) (updates [][]byte) {
	next := make(map[uint64]uint32)
	id := func() (client uint64, clock uint32, ok bool) {
		if client = uint64(1 + r.IntN(3)); next[client] == 0 {
			return 0, 0, false
		}
		return client, uint32(r.IntN(int(next[client]))), true
	}
	for range n {
		client := uint64(1 + r.IntN(3))
		s := wireStruct{client: client, clock: next[client], kind: kindString}
		s.body = []byte([]string{"a", "bc", "😀", "x😀y"}[r.IntN(4)])
		s.length, _ = len16(s.body)
		var ok bool
		if r.IntN(5) > 0 {
			if s.oc, s.ok, ok = id(); ok {
				s.flags |= flagOrigin
			}
		}
		if r.IntN(4) > 0 {
			if s.rc, s.rk, ok = id(); ok {
				s.flags |= flagRight
			}
		}
		if s.flags == 0 {
			s.flags, s.root = flagRoot, []byte([]string{"t", "t", "t", "a"}[r.IntN(4)])
			if r.IntN(4) == 0 {
				s.flags, s.sub = s.flags|flagSub, []byte("k")
			}
		}
		next[client] = s.end()
		w := structWriter{e: newEncoder(false, 32)}
		w.write(&s, 0)
		w.finish()
		w.e.uvarint(0)
		updates = append(updates, w.e.finish())
	}
	return updates
}
