package auth

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"

	"signalbox.dev/services/gateway/internal/store"
)

// Reasons for the end of a stream. They are sent to the client.
var (
	ErrExpired error = fault.Coded(fault.Unauthenticated, "INVALID_TOKEN", "the token has expired: sign in again")
	ErrRevoked error = fault.Coded(fault.Forbidden, "NOT_A_MEMBER", "your membership in this workspace, the API key, the browser session, or the share link has ended")
)

// Grants reports which of the given grants have ended.
type Grants interface {
	Ended(ctx context.Context, grants []store.Grant) ([]store.Grant, error)
}

// StreamsConfig limits open streams.
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

	mu         sync.Mutex // guards the fields below and those of the streams
	members    map[id.Member]int
	workspaces map[id.Workspace]int
	open       map[store.Grant]map[*Stream]struct{}
}

// Stream is an open stream. It ends when its principal's permission does.
type Stream struct {
	all     *Streams
	grant   store.Grant
	expires time.Time               // zero for never
	cancel  context.CancelCauseFunc // cancels its context; nil once it is detached
	end     func(error)             // called instead of cancel once it is detached
	cause   error                   // why it was ended; nil while it is open
}

// NewStreams returns an empty set of streams. Run must be running for streams to expire.
func NewStreams(cfg StreamsConfig) *Streams {
	if cfg.Recheck == 0 {
		cfg.Recheck = 3 * time.Second
	}
	return &Streams{cfg: cfg, members: map[id.Member]int{}, workspaces: map[id.Workspace]int{}, open: map[store.Grant]map[*Stream]struct{}{}}
}

// Add adds a principal's stream, within the limits. The returned context is cancelled with
// ctx, when the token expires, or when the permission is withdrawn. The caller closes the
// stream.
func (s *Streams) Add(ctx context.Context, g Principal) (context.Context, *Stream, error) {
	member, ws := g.Actor.Member, g.Actor.Workspace
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.members[member] >= s.cfg.PerMember {
		return nil, nil, tooManyStreams("you have")
	}
	if s.workspaces[ws] >= s.cfg.PerWorkspace {
		return nil, nil, tooManyStreams("this workspace has")
	}
	s.members[member]++
	s.workspaces[ws]++
	ctx, cancel := context.WithCancelCause(ctx)
	stream := &Stream{all: s, grant: g.Grant, expires: g.Expires, cancel: cancel}
	if s.open[g.Grant] == nil {
		s.open[g.Grant] = map[*Stream]struct{}{}
	}
	s.open[g.Grant][stream] = struct{}{}
	return ctx, stream, nil
}

// Detach cancels the stream's context, so that the stream may outlive the request that
// opened it. From now on end is called instead, at most once, with the reason. end must
// not block; it may close the stream.
func (s *Stream) Detach(end func(error)) {
	s.all.mu.Lock()
	cancel, cause := s.cancel, s.cause
	s.cancel, s.end = nil, end
	s.all.mu.Unlock()
	cancel(nil)
	if cause != nil {
		end(cause)
	}
}

// Close removes the stream from the count and cancels its context. It must be called
// once.
func (s *Stream) Close() {
	a := s.all
	a.mu.Lock()
	countDown(a.members, s.grant.Member)
	countDown(a.workspaces, s.grant.Workspace)
	delete(a.open[s.grant], s)
	if len(a.open[s.grant]) == 0 {
		delete(a.open, s.grant)
	}
	cancel := s.cancel
	a.mu.Unlock()
	if cancel != nil {
		cancel(nil)
	}
}

// stop ends the stream. Only the first call has an effect.
func (s *Stream) stop(why error) {
	s.all.mu.Lock()
	cancel, end, before := s.cancel, s.end, s.cause
	s.cause = why
	s.all.mu.Unlock()
	switch {
	case before != nil:
	case end != nil:
		end(why)
	default:
		cancel(why)
	}
}

func countDown[K comparable](m map[K]int, k K) {
	if m[k]--; m[k] <= 0 {
		delete(m, k)
	}
}

func tooManyStreams(subject string) error {
	return &fault.Error{
		Kind: fault.Limited, Code: "TOO_MANY_STREAMS", RetryAfter: 5 * time.Second,
		Message: subject + " too many open streams: close one first",
	}
}

// Run ends the streams whose permission was withdrawn or whose token expired, until ctx
// is done.
func (s *Streams) Run(ctx context.Context) error {
	recheck := time.NewTicker(s.cfg.Recheck)
	defer recheck.Stop()
	expiry := time.NewTicker(min(s.cfg.Recheck, time.Second))
	defer expiry.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-recheck.C:
			s.recheck(ctx)
		case now := <-expiry.C:
			s.expire(now)
		}
	}
}

// expire ends the streams whose token has expired.
func (s *Streams) expire(now time.Time) {
	var over []*Stream
	s.mu.Lock()
	for _, streams := range s.open {
		for stream := range streams {
			if !stream.expires.IsZero() && !now.Before(stream.expires) {
				over = append(over, stream)
			}
		}
	}
	s.mu.Unlock()
	for _, stream := range over {
		stream.stop(ErrExpired)
	}
}

func (s *Streams) recheck(ctx context.Context) {
	s.mu.Lock()
	grants := slices.Collect(maps.Keys(s.open))
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
	var over []*Stream
	s.mu.Lock()
	for _, g := range ended {
		over = slices.AppendSeq(over, maps.Keys(s.open[g]))
	}
	s.mu.Unlock()
	for _, stream := range over {
		stream.stop(ErrRevoked)
	}
}
