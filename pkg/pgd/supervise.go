package pgd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"
)

// Pauses between the attempts to restart a server.
const (
	firstWait = 100 * time.Millisecond
	lastWait  = 2 * time.Second
)

// Kept is a server that is restarted whenever it ends unexpectedly: after a crash, a kill, or
// a full disk, once there is room again. Its URLs stay the same, so that connection pools
// recover by themselves.
type Kept struct {
	cfg   Config
	stop  context.CancelFunc // ends the restarts
	ended chan struct{}      // closed when they have ended

	mu     sync.Mutex // guards what follows
	server *Server    // the running server, or the last one
	err    error      // why no server is running
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
		err := errors.New("it ended unexpectedly; " + before.LastLines())
		for wait := firstWait; ; wait = min(2*wait, lastWait) {
			k.down(ctx, err)
			var s *Server
			if s, err = restart(ctx, k.cfg, before); err == nil {
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

// restart starts the server again in its folder, with the same socket.
func restart(ctx context.Context, cfg Config, before *Server) (*Server, error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	cfg.Dir = before.dir
	s, err := start(ctx, cfg, before)
	if err != nil {
		return nil, fmt.Errorf("restart private PostgreSQL: %w", err)
	}
	return s, nil
}

// down records why no server is running, and logs it once.
func (k *Kept) down(ctx context.Context, err error) {
	k.mu.Lock()
	known := k.err != nil && k.err.Error() == err.Error()
	k.err = err
	k.mu.Unlock()
	if !known && ctx.Err() == nil {
		k.cfg.Log.ErrorContext(ctx, "private postgres is down, restarting it", "dir", k.cfg.Dir, "error", err)
	}
}

func (k *Kept) up(ctx context.Context, s *Server) {
	k.mu.Lock()
	k.server, k.err = s, nil
	k.mu.Unlock()
	k.cfg.Log.WarnContext(ctx, "private postgres is running again", "dir", k.cfg.Dir)
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

// reuseSocket takes over the socket of the previous server. A temporary folder of it was
// removed with that server.
func (s *Server) reuseSocket(as user, before *Server) error {
	s.socket = before.socket
	if s.socket == s.dir {
		return nil
	}
	if err := os.Mkdir(s.socket, 0o700); err != nil { // not MkdirAll, which would accept somebody else's folder
		return fmt.Errorf("create the folder for the socket: %w", err)
	}
	s.remove = append(s.remove, s.socket)
	return as.give(s.socket)
}
