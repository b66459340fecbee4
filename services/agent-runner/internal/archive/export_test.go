package archive

import "context"

// Copier copies one partition step by step.
type Copier struct{ c *copier }

// Copier returns a copier of a partition that takes part as one more replica.
func (a *Archive) Copier(stream string) *Copier {
	return &Copier{&copier{Archive: a, stream: stream, log: a.cfg.Log}}
}

// Next is what a copier does each time; it returns how many messages it copied.
func (c *Copier) Next(ctx context.Context) (int, error) {
	b, err := c.c.next(ctx)
	if b == nil || !c.c.active {
		return 0, err
	}
	return b.read, err
}

// Expire deletes what is old, once.
func (a *Archive) Expire(ctx context.Context) (int64, error) { return a.expireSome(ctx) }
