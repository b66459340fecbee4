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
	minWait = 100 * time.Millisecond
	maxWait = 2 * time.Second
)

// Supervised is a server that is restarted whenever it ends unexpectedly: after a crash, a
// kill, or a full disk, once there is room again. Its URLs stay the same, so that connection pools
// recover by themselves.
type Supervised struct {
	cfg   Config
	stop  context.CancelFunc // ends the restarts
	ended chan struct{}      // closed when they have ended

	mu     sync.Mutex // guards what follows
	server *Server    // the running server, or the last one
	err    error      // why no server is running
}

// Supervise starts a server as [Start] does, and keeps it running until Stop.
func Supervise(ctx context.Context, cfg Config) (*Supervised, error) {
	s, err := Start(ctx, cfg)
	if err != nil {
		return nil, err
	}
	cfg.Log = s.log
	v := &Supervised{cfg: cfg, server: s, ended: make(chan struct{})}
	ctx, v.stop = context.WithCancel(context.WithoutCancel(ctx))
	go v.run(ctx)
	return v, nil
}

func (v *Supervised) run(ctx context.Context) {
	defer close(v.ended)
	for {
		before := v.current()
		select {
		case <-before.Done():
		case <-ctx.Done():
			return
		}
		err := errors.New("it ended unexpectedly; " + before.LastLines())
		for wait := minWait; ; wait = min(2*wait, maxWait) {
			v.down(ctx, err)
			var s *Server
			if s, err = restart(ctx, v.cfg, before); err == nil {
				v.up(ctx, s)
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
func (v *Supervised) down(ctx context.Context, err error) {
	v.mu.Lock()
	known := v.err != nil && v.err.Error() == err.Error()
	v.err = err
	v.mu.Unlock()
	if !known && ctx.Err() == nil {
		v.cfg.Log.ErrorContext(ctx, "private postgres is down, restarting it", "dir", v.cfg.Dir, "error", err)
	}
}

func (v *Supervised) up(ctx context.Context, s *Server) {
	v.mu.Lock()
	v.server, v.err = s, nil
	v.mu.Unlock()
	v.cfg.Log.WarnContext(ctx, "private postgres is running again", "dir", v.cfg.Dir)
}

func (v *Supervised) current() *Server {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.server
}

// URL is [Server.URL].
func (v *Supervised) URL(database string) string { return v.current().URL(database) }

// EnsureDatabase is [Server.EnsureDatabase].
func (v *Supervised) EnsureDatabase(ctx context.Context, name string) error {
	return v.current().EnsureDatabase(ctx, name)
}

// Stop shuts the server down for good, like [Server.Stop].
func (v *Supervised) Stop(ctx context.Context) error {
	v.stop()
	<-v.ended
	return v.current().Stop(ctx)
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
	return as.chown(s.socket)
}
