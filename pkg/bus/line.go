package bus

import (
	"context"
	"errors"
	"fmt"
)

// lines are the connections of a bus, one after the other, as contexts: each ends
// when its connection does. The bus's mutex guards them.
type lines struct {
	line context.Context //nolint:containedctx // a connection's life, which no call owns
	cut  context.CancelFunc
}

func newLines() (l lines) {
	l.line, l.cut = context.WithCancel(context.Background())
	return l
}

// lose ends what waits for an answer on the connection that was lost.
func (b *Bus) lose() {
	b.mu.Lock()
	cut := b.lines.cut
	b.lines = newLines()
	b.mu.Unlock()
	cut()
}

// onLine returns a context for a question to the server, which ends also when the
// connection is lost: an answer that was on its way then never comes. done is to be
// called.
func (b *Bus) onLine(ctx context.Context) (asking context.Context, done func()) {
	b.mu.Lock()
	line := b.lines.line
	b.mu.Unlock()
	asking, end := context.WithCancelCause(ctx)
	forget := context.AfterFunc(line, func() { end(ErrDisconnected) })
	return asking, func() {
		forget()
		end(nil)
	}
}

// unanswered returns why a question has failed with err.
func unanswered(asking context.Context, err error) error {
	if errors.Is(err, context.Canceled) && errors.Is(context.Cause(asking), ErrDisconnected) {
		return errUnanswered // and not err: nobody has cancelled anything
	}
	return err
}

var errUnanswered = fmt.Errorf("%w: the connection was lost before the server answered", ErrDisconnected)
