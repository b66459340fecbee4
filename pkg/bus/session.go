package bus

import (
	"context"
	"errors"
	"fmt"
)

// session is the time from one connect to the next disconnect, as a context. The bus's mutex
// guards it.
type session struct {
	ctx    context.Context //nolint:containedctx // no call owns a connection
	cancel context.CancelFunc
}

func newSession() (s session) {
	s.ctx, s.cancel = context.WithCancel(context.Background())
	return s
}

// endSession fails the requests of a connection that was lost.
func (b *Bus) endSession() {
	b.mu.Lock()
	ended := b.session
	b.session = newSession()
	b.mu.Unlock()
	ended.cancel()
}

// inSession returns a context for a request to the server, which is cancelled when the
// connection is lost, because the reply is lost with it. The caller calls release.
func (b *Bus) inSession(ctx context.Context) (request context.Context, release func()) {
	b.mu.Lock()
	s := b.session
	b.mu.Unlock()
	request, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(s.ctx, func() { cancel(ErrDisconnected) })
	return request, func() {
		stop()
		cancel(nil)
	}
}

// sessionErr returns the error of a request that failed with err: a lost connection if that
// cancelled it.
func sessionErr(request context.Context, err error) error {
	if errors.Is(err, context.Canceled) && errors.Is(context.Cause(request), ErrDisconnected) {
		return fmt.Errorf("%w: the connection was lost before the server answered", ErrDisconnected)
	}
	return err
}
