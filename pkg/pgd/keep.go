package pgd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"
)

// Waits between the attempts to start a server again.
const (
	firstWait = 100 * time.Millisecond
	lastWait  = 2 * time.Second
)

// Kept is a server that is started again whenever it ends without being asked to:
// after a crash, a kill, or a full disk, as soon as there is room again. Its URLs stay
// the same, so that pools of connections come back by themselves.
type Kept struct {
	cfg   Config
	stop  context.CancelFunc // ends the starting again
	ended chan struct{}      // closed when nothing is started any more

	mu     sync.Mutex // guards what follows
	server *Server    // the one that runs, or the last that did
	err    error      // why none runs
}

// Keep starts a server as [Start] does, and keeps it running until Stop.
func Keep(ctx context.Context, cfg Config) (*Kept, error) {
	s, err := Start(ctx, cfg)
	if err != nil {
		return nil, err
	}
	cfg.Log = s.log
	k := &Kept{cfg: cfg, server: s, ended: make(chan struct{})}
	ctx, k.stop = context.WithCancel(context.WithoutCancel(ctx))
	go k.run(ctx)
	return k, nil
}

func (k *Kept) run(ctx context.Context) {
	defer close(k.ended)
	for {
		before := k.current()
		select {
		case <-before.Done():
		case <-ctx.Done():
			return
		}
		err := errors.New("it ended on its own; " + before.LastLines())
		for wait := firstWait; ; wait = min(2*wait, lastWait) {
			k.down(ctx, err)
			var s *Server
			if s, err = startAgain(ctx, k.cfg, before); err == nil {
				k.up(ctx, s)
				break
			}
			select {
			case <-time.After(wait):
			case <-ctx.Done():
				return
			}
		}
	}
}

// startAgain starts the server anew in its folder, at the socket of the one before.
func startAgain(ctx context.Context, cfg Config, before *Server) (*Server, error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	cfg.Dir = before.dir
	s, err := start(ctx, cfg, before)
	if err != nil {
		return nil, fmt.Errorf("start private PostgreSQL again: %w", err)
	}
	return s, nil
}

// down notes why no server runs, and logs it once.
func (k *Kept) down(ctx context.Context, err error) {
	k.mu.Lock()
	known := k.err != nil && k.err.Error() == err.Error()
	k.err = err
	k.mu.Unlock()
	if !known && ctx.Err() == nil {
		k.cfg.Log.ErrorContext(ctx, "private postgres is down, starting it again", "dir", k.cfg.Dir, "error", err)
	}
}

func (k *Kept) up(ctx context.Context, s *Server) {
	k.mu.Lock()
	k.server, k.err = s, nil
	k.mu.Unlock()
	k.cfg.Log.WarnContext(ctx, "private postgres runs again", "dir", k.cfg.Dir)
}

func (k *Kept) current() *Server {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.server
}

// URL is [Server.URL].
func (k *Kept) URL(database string) string { return k.current().URL(database) }

// EnsureDatabase is [Server.EnsureDatabase].
func (k *Kept) EnsureDatabase(ctx context.Context, name string) error {
	return k.current().EnsureDatabase(ctx, name)
}

// Stop shuts the server down for good, like [Server.Stop].
func (k *Kept) Stop(ctx context.Context) error {
	k.stop()
	<-k.ended
	return k.current().Stop(ctx)
}

// reuseSocket takes the socket of the server before, whose folder went with it where
// it was a temporary one.
func (s *Server) reuseSocket(as user, before *Server) error {
	s.socket = before.socket
	if s.socket == s.dir {
		return nil
	}
	if err := os.Mkdir(s.socket, 0o700); err != nil { // not MkdirAll: nobody else's folder is taken
		return fmt.Errorf("make the folder for the socket: %w", err)
	}
	s.remove = append(s.remove, s.socket)
	return as.give(s.socket)
}
