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
	firstPoll = time.Millisecond
	lastPoll  = 20 * time.Millisecond
)

// lock keeps others from changing the file until unlock is called, or the process ends in
// whatever way. If somebody else holds the lock for too long, the error says so.
func (f *File) lock(ctx context.Context) (unlock func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, lockWait)
	defer cancel()
	select {
	case f.slot <- struct{}{}:
	case <-ctx.Done():
		return nil, lockHeld(ctx.Err(), "another process is changing the accounts file %s: try again in a moment", f.path)
	}
	defer func() {
		if err != nil {
			<-f.slot
		}
	}()
	file, _, err := f.create(f.path+".lock", os.O_RDWR)
	if err != nil {
		return nil, fault.Wrap(err, fault.Unavailable, fmt.Sprintf("the accounts file %s cannot be locked: %v", f.path, err))
	}
	// Polling, because a blocking call could not be cancelled.
	for poll := firstPoll; ; poll = min(2*poll, lastPoll) {
		err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			break
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			_ = file.Close() // it is empty
			return nil, fault.Wrap(err, fault.Unavailable, fmt.Sprintf("the accounts file %s cannot be locked: %v: keep it on a disk of this machine", f.path, err))
		}
		if err := pause(ctx, poll/2+rand.N(poll)); err != nil {
			_ = file.Close() // it is empty
			return nil, lockHeld(err, "another process holds %s.lock: if it is suspended, resume it or end it", f.path)
		}
	}
	return func() {
		_ = file.Close() // closing drops the lock
		<-f.slot
	}, nil
}

func lockHeld(err error, format string, args ...any) error {
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
