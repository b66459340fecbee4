package door

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"

	"signalbox.dev/services/gateway/internal/store"
)

// Reasons for which a stream's context ends. They are for its client, too.
var (
	ErrExpired error = fault.Coded(fault.Unauthenticated, "INVALID_TOKEN", "the token has expired: sign in again")
	ErrRevoked error = fault.Coded(fault.Forbidden, "NOT_A_MEMBER", "your membership of this workspace, or the API key, has ended")
)

// Grants tells which of the rights that streams rest on have ended.
type Grants interface {
	Ended(ctx context.Context, grants []store.Grant) ([]store.Grant, error)
}

// StreamsConfig bounds open streams.
type StreamsConfig struct {
	Grants       Grants
	Log          *slog.Logger
	PerMember    int
	PerWorkspace int
	Recheck      time.Duration // 3 s when 0
}

// Streams are the open streams of a gateway. It is safe for concurrent use.
type Streams struct {
	cfg StreamsConfig

	mu         sync.Mutex // guards what follows
	members    map[id.Member]int
	workspaces map[id.Workspace]int
	open       map[store.Grant]map[*openStream]struct{}
}

type openStream struct{ cancel context.CancelCauseFunc }

// NewStreams returns an empty set of streams; Run keeps it honest.
func NewStreams(cfg StreamsConfig) *Streams {
	if cfg.Recheck == 0 {
		cfg.Recheck = 3 * time.Second
	}
	return &Streams{cfg: cfg, members: map[id.Member]int{}, workspaces: map[id.Workspace]int{}, open: map[store.Grant]map[*openStream]struct{}{}}
}

// Add counts a guest's stream. The context that it returns ends with ctx, when
// the guest's token expires or their right ends; release must be called once.
func (s *Streams) Add(ctx context.Context, g Guest) (_ context.Context, release func(), err error) {
	who, ws := g.Actor.Member, g.Actor.Workspace
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.members[who] >= s.cfg.PerMember {
		return nil, nil, tooManyStreams("you have")
	}
	if s.workspaces[ws] >= s.cfg.PerWorkspace {
		return nil, nil, tooManyStreams("this workspace has")
	}
	s.members[who]++
	s.workspaces[ws]++
	ctx, cancel := context.WithCancelCause(ctx)
	expire := func() bool { return true }
	if !g.Expires.IsZero() {
		timer := time.AfterFunc(time.Until(g.Expires), func() { cancel(ErrExpired) })
		expire = timer.Stop
	}
	stream := &openStream{cancel}
	if s.open[g.Grant] == nil {
		s.open[g.Grant] = map[*openStream]struct{}{}
	}
	s.open[g.Grant][stream] = struct{}{}
	return ctx, func() {
		expire()
		cancel(nil)
		s.mu.Lock()
		defer s.mu.Unlock()
		countDown(s.members, who)
		countDown(s.workspaces, ws)
		delete(s.open[g.Grant], stream)
		if len(s.open[g.Grant]) == 0 {
			delete(s.open, g.Grant)
		}
	}, nil
}

func countDown[K comparable](m map[K]int, k K) {
	if m[k]--; m[k] <= 0 {
		delete(m, k)
	}
}

func tooManyStreams(who string) error {
	return &fault.Error{
		Kind: fault.Limited, Code: "TOO_MANY_STREAMS", RetryAfter: 5 * time.Second,
		Message: who + " too many open streams: close one first",
	}
}

// Run ends streams whose right has gone, until ctx is done.
func (s *Streams) Run(ctx context.Context) error {
	tick := time.NewTicker(s.cfg.Recheck)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			s.recheck(ctx)
		}
	}
}

func (s *Streams) recheck(ctx context.Context) {
	s.mu.Lock()
	grants := make([]store.Grant, 0, len(s.open))
	for g := range s.open {
		grants = append(grants, g)
	}
	s.mu.Unlock()
	if len(grants) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	ended, err := s.cfg.Grants.Ended(ctx, grants)
	if err != nil {
		s.cfg.Log.WarnContext(ctx, "memberships of open streams not checked", "error", err)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, g := range ended {
		for stream := range s.open[g] {
			stream.cancel(ErrRevoked)
		}
	}
}
