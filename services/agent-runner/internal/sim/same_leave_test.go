package sim

import (
	"fmt"
	"time"
)

// Operations by which a runner gives a run back.

func (b *both) park() (here, there []string) {
	c, ok := b.aClaim()
	if !ok || b.rng.IntN(2) > 0 {
		return nil, nil
	}
	return []string{why(b.rows.park(c.here))}, []string{why(b.store().Park(b.t.Context(), c.there))}
}

func (b *both) release() (here, there []string) {
	c, ok := b.aClaim()
	if !ok {
		return nil, nil
	}
	wait := time.Duration(b.rng.IntN(2)) * time.Hour
	b.rows.release(c.here, wait)
	return []string{"ok"}, []string{why(b.store().Release(b.t.Context(), c.there, wait))}
}

func (b *both) releaseUnconfirmed() (here, there []string) {
	c, ok := b.aClaim()
	if !ok || b.rng.IntN(4) > 0 {
		return nil, nil
	}
	runner := b.runners[b.rng.IntN(len(b.runners))]
	one := b.rows.releaseUnconfirmed(runner, c.here.Run.ID)
	two, err := b.runs[runner].ReleaseUnconfirmed(b.t.Context(), c.there.Run.Workspace, c.there.Run.ID)
	return []string{"ok", fmt.Sprint(one)}, []string{why(err), fmt.Sprint(two)}
}
