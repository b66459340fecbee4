package auth_test

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"

	"signalbox.dev/services/gateway/internal/auth"
	"signalbox.dev/services/gateway/internal/store"
)

// grants has the grants that have ended.
type grants struct {
	mu    sync.Mutex // guards ended
	ended []store.Grant
}

func (g *grants) Ended(context.Context, []store.Grant) ([]store.Grant, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.ended, nil
}

func principal(ws id.Workspace, m id.Member, expires time.Time) auth.Principal {
	return auth.Principal{
		Actor: identity.Actor{Workspace: ws, Member: m, Role: identity.Viewer}, Expires: expires,
		Grant: store.Grant{Workspace: ws, Member: m},
	}
}

func TestStreamsAreCounted(t *testing.T) {
	t.Parallel()
	s := auth.NewStreams(auth.StreamsConfig{Grants: &grants{}, Log: slog.New(slog.DiscardHandler), PerMember: 2, PerWorkspace: 3})
	ws, one, two := id.New[id.Workspace](), id.New[id.Member](), id.New[id.Member]()
	add := func(g auth.Principal) (*auth.Stream, error) {
		_, stream, err := s.Add(t.Context(), g)
		return stream, err
	}
	var open []*auth.Stream
	for _, tt := range []struct {
		authenticate auth.Principal
		ok           bool
	}{
		{principal(ws, one, time.Time{}), true},
		{principal(ws, one, time.Time{}), true},
		{principal(ws, one, time.Time{}), false}, // their third
		{principal(ws, two, time.Time{}), true},
		{principal(ws, two, time.Time{}), false},                     // the workspace's fourth
		{principal(id.New[id.Workspace](), two, time.Time{}), true},  // of another workspace
		{principal(id.New[id.Workspace](), two, time.Time{}), false}, // their third there
		{principal(ws, id.New[id.Member](), time.Time{}), false},     // again the workspace's fourth
	} {
		stream, err := add(tt.authenticate)
		if (err == nil) != tt.ok {
			t.Errorf("Add(%v) = %v, want allowed: %v", tt.authenticate.Actor, err, tt.ok)
		}
		if f, is := errors.AsType[*fault.Error](err); err != nil && (!is || f.Kind != fault.Limited || f.RetryAfter == 0) {
			t.Errorf("Add(%v) = %v, want Limited with a time to wait", tt.authenticate.Actor, err)
		}
		if stream != nil {
			open = append(open, stream)
		}
	}
	open[0].Close()
	if _, err := add(principal(ws, id.New[id.Member](), time.Time{})); err != nil {
		t.Errorf("Add in the place of one that was closed = %v", err)
	}
}

func TestStreamsEnd(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		end  func(*grants, auth.Principal)
		want error
	}{
		"token expires": {func(*grants, auth.Principal) { time.Sleep(time.Minute) }, auth.ErrExpired}, //nolint:forbidigo // of the bubble's time
		"right ends": {func(g *grants, authenticate auth.Principal) {
			g.mu.Lock()
			defer g.mu.Unlock()
			g.ended = []store.Grant{authenticate.Grant}
		}, auth.ErrRevoked},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				rights := &grants{}
				s := auth.NewStreams(auth.StreamsConfig{Grants: rights, Log: slog.New(slog.DiscardHandler), PerMember: 10, PerWorkspace: 10})
				ctx, cancel := context.WithCancel(t.Context())
				var run sync.WaitGroup
				run.Go(func() { _ = s.Run(ctx) })
				authenticate := principal(id.New[id.Workspace](), id.New[id.Member](), time.Now().Add(time.Minute-100*time.Millisecond))
				other := principal(authenticate.Actor.Workspace, id.New[id.Member](), time.Time{})

				attached, first, err1 := s.Add(ctx, authenticate)
				old, second, err2 := s.Add(ctx, authenticate)
				others, third, err3 := s.Add(ctx, other)
				if err := errors.Join(err1, err2, err3); err != nil {
					t.Fatal(err)
				}
				ended := make(chan error, 2)
				second.Detach(func(err error) {
					second.Close() // as the feed does
					ended <- err
				})
				if old.Err() == nil {
					t.Error("the context of a detached stream goes on")
				}
				tt.end(rights, authenticate)
				if err := <-ended; !errors.Is(err, tt.want) {
					t.Errorf("detached stream ended with %v, want %v", err, tt.want)
				}
				<-attached.Done()
				if err := context.Cause(attached); !errors.Is(err, tt.want) {
					t.Errorf("attached stream ended with %v, want %v", err, tt.want)
				}
				// Detaching after the end calls end at once.
				first.Detach(func(err error) { ended <- err })
				if err := <-ended; !errors.Is(err, tt.want) {
					t.Errorf("stream that was detached too late ended with %v, want %v", err, tt.want)
				}
				if others.Err() != nil {
					t.Errorf("somebody else's stream ended: %v", context.Cause(others))
				}
				time.Sleep(10 * time.Second) //nolint:forbidigo // of the bubble's time
				if len(ended) != 0 {
					t.Error("a stream was ended twice")
				}
				first.Close()
				third.Close()
				cancel()
				run.Wait()
			})
		})
	}
}
