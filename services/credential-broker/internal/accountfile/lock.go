package accountfile

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"syscall"
	"time"

	"signalbox.dev/pkg/fault"
)

const (
	lockWait  = 10 * time.Second
	firstLook = time.Millisecond
	lastLook  = 20 * time.Millisecond
)

// lock keeps all others from changing the file until unlock is called, or the process
// ends, however it ends. Where somebody else holds it for too long, the error says so.
func (f *File) lock(ctx context.Context) (unlock func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, lockWait)
	defer cancel()
	select {
	case f.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, f.held(ctx.Err(), "another change of the accounts file %s takes too long: try again in a moment", f.path)
	}
	defer func() {
		if err != nil {
			<-f.turn
		}
	}()
	file, _, err := f.create(f.path+".lock", os.O_RDWR)
	if err != nil {
		return nil, fault.Wrap(err, fault.Unavailable, fmt.Sprintf("the accounts file %s cannot be locked: %v", f.path, err))
	}
	// Again and again, and not in a call that waits: that one could not be given up.
	for look := firstLook; ; look = min(2*look, lastLook) {
		err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			break
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			_ = file.Close() // nothing is in it
			return nil, fault.Wrap(err, fault.Unavailable, fmt.Sprintf("the accounts file %s cannot be locked: %v: keep it on a disk of this machine", f.path, err))
		}
		if err := pause(ctx, look/2+rand.N(look)); err != nil {
			_ = file.Close() // nothing is in it
			return nil, f.held(err, "another process holds %s.lock: if it was stopped, let it go on or end it", f.path)
		}
	}
	return func() {
		_ = file.Close() // closing drops the lock
		<-f.turn
	}, nil
}

func (*File) held(err error, format string, args ...any) error {
	if errors.Is(err, context.Canceled) {
		return fmt.Errorf("lock the accounts file: %w", err)
	}
	return fault.Wrap(err, fault.Unavailable, fmt.Sprintf(format, args...))
}

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}
