package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/sse"
	agentv1 "signalbox.dev/proto/signalbox/agent/v1"
	"signalbox.dev/proto/signalbox/agent/v1/agentv1connect"

	"signalbox.dev/services/gateway/internal/auth"
	"signalbox.dev/services/gateway/internal/dialect"
	"signalbox.dev/services/gateway/internal/feed"
)

// retryMS is how long EventSource waits before it comes back.
const retryMS = 1000

// stream is one viewer's connection, from the moment it is counted.
type stream struct {
	api     *API
	ctx     context.Context //nolint:containedctx // the stream's life: also its token's and its membership's
	viewer  *feed.Viewer
	count   *auth.Stream
	run     *agentv1.Run // nil for a whole session
	opening []byte       // what is written before the feed's events
	over    bool         // nothing comes after opening
}

// reply makes the stream the answer, or gives it up for an error.
func (s *stream) reply(err error) (*reply, error) {
	if err != nil {
		leave(s.viewer, err)
		err = withReason(s.ctx, err)
		s.count.Close()
		return nil, err
	}
	return &reply{s.serve}, nil
}

// serve writes the stream, or hands it to the feed with its connection. When it
// does not end well the connection is cut, so that no client takes half of an
// answer for the whole.
func (s *stream) serve(hc huma.Context) {
	r, w := humago.Unwrap(hc)
	h := w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-cache, no-transform")
	h.Set("X-Accel-Buffering", "no")
	if s.run != nil {
		h.Set("X-Run-Id", s.run.GetId())
	}
	opening := append(sse.AppendHeartbeat(sse.AppendRetry(nil, retryMS)), s.opening...)
	if r.Method != http.MethodHead && !s.over && s.hand(w, r, opening) {
		return
	}
	defer s.count.Close()
	defer s.viewer.Close()
	w.WriteHeader(http.StatusOK)
	if r.Method == http.MethodHead {
		return
	}
	out := &sink{w: w, rc: http.NewResponseController(w)}
	var err error
	if s.over {
		err = out.Write(opening)
	} else {
		err = s.viewer.Serve(s.ctx, out, opening)
	}
	if err != nil {
		s.api.cfg.Log.DebugContext(s.ctx, "stream cut", "session", s.viewer.Session(), "error", err)
		panic(http.ErrAbortHandler)
	}
}

// hand gives the stream to the feed, which needs neither this goroutine for it nor
// what the request holds; false when the connection is not of that kind.
func (s *stream) hand(w http.ResponseWriter, r *http.Request, opening []byte) bool {
	if s.api.cfg.KeepConnections {
		return false
	}
	c, err := feed.Hijack(w, r, s.api.cfg.WriteTimeout)
	if errors.Is(err, http.ErrNotSupported) {
		return false
	}
	log, viewer, count := s.api.cfg.Log, s.viewer, s.count
	if err != nil {
		log.DebugContext(s.ctx, "stream cut", "session", viewer.Session(), "error", err)
		viewer.Close()
		count.Close()
		return true
	}
	count.Detach(viewer.Cut)
	viewer.Attach(c, opening, func(err error) {
		count.Close()
		if err != nil {
			log.Debug("stream cut", "session", viewer.Session(), "error", err) //nolint:sloglint // the request is long over
		}
	})
	return true
}

// sink is a stream over net/http. The server bounds how long a write may take.
type sink struct {
	w  http.ResponseWriter
	rc *http.ResponseController
}

// Write implements feed.Sink.
func (s *sink) Write(p []byte) error {
	if _, err := s.w.Write(p); err != nil {
		return fmt.Errorf("write to the viewer: %w", err)
	}
	if err := s.rc.Flush(); err != nil {
		return fmt.Errorf("write to the viewer: %w", err)
	}
	return nil
}

// WatchInput is where a viewer left off.
type WatchInput struct {
	LastEventID string `header:"Last-Event-ID" doc:"The id of the last event that arrived. EventSource sends it by itself."`
	After       string `query:"after" doc:"The same, for clients that cannot set headers; the header wins."`
	Workspace   string `query:"workspace_id" doc:"The workspace's id, for clients that cannot set headers."`
}

// cursor returns the id to go on from; empty for none.
func (in *WatchInput) cursor() string {
	if in.LastEventID != "" {
		return in.LastEventID
	}
	return in.After
}

func (a *API) openStream(ctx context.Context, session id.Session) (*stream, error) {
	sctx, count, err := a.cfg.Streams.Add(ctx, principalOf(ctx))
	if err != nil {
		return nil, err
	}
	v, err := a.cfg.Feed.Open(sctx, session)
	if err != nil {
		err = withReason(sctx, err)
		count.Close()
		return nil, err
	}
	return &stream{api: a, ctx: sctx, viewer: v, count: count}, nil
}

// withReason returns why a stream's right ended where that is what err comes from.
func withReason(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); errors.Is(cause, auth.ErrExpired) || errors.Is(cause, auth.ErrRevoked) {
		return cause
	}
	return err
}

func (a *API) watchSession(ctx context.Context, in *struct {
	SessionPath
	WatchInput
},
) (*reply, error) {
	session, err := parseID[id.Session]("id", in.ID)
	if err != nil {
		return nil, err
	}
	s, err := a.openStream(ctx, session)
	if err != nil {
		return nil, err
	}
	return s.reply(s.resumeSession(session, in.cursor()))
}

// resumeSession places a session's viewer behind the event with the given id, or
// gives it a snapshot.
func (s *stream) resumeSession(session id.Session, cursor string) error {
	// After the feed was opened: what is committed later than this comes as events.
	key := sessionKey{principalOf(s.ctx).Actor.Workspace, session}
	res, err := s.api.lookups.get(s.ctx, key, func(ctx context.Context) (*agentv1.GetSessionResponse, error) {
		return s.api.cfg.Conversations.GetSession(ctx, &agentv1.GetSessionRequest{Id: session.String(), WithoutMessages: true})
	})
	if err != nil || cursor == "" {
		return err
	}
	c := feed.ContentsOf(res.GetLastEvent(), res.GetActiveRun())
	if p, ok := feed.ParsePosition(cursor); ok && c.MayKnow(p) {
		found, err := s.viewer.After(s.ctx, p)
		if err != nil || found {
			return err
		}
		// The log does not have it any more, and nothing has happened since.
		if c.Position() == p {
			return s.viewer.Restart(s.ctx, feed.Snapshot{Contents: c})
		}
		if p == (feed.Position{}) && c.HasBegun() {
			if found, err := s.viewer.AwaitStart(s.ctx, 1); err != nil || found {
				return err
			}
		}
	}
	return s.snapshot()
}

// snapshot begins the stream with what the session holds.
func (s *stream) snapshot() error {
	snap, err := s.viewer.Snapshot(s.ctx)
	if err != nil {
		return err
	}
	s.opening = s.viewer.AppendSnapshot(s.opening, snap)
	return s.viewer.Restart(s.ctx, snap)
}

// begin places the viewer of a run that was just made at the run's beginning.
func (s *stream) begin(f feed.Follow) error {
	found, err := s.viewer.FromStartOfNew(s.ctx, s.run.GetOrdinal())
	if err != nil {
		return err
	}
	if found {
		s.viewer.FollowRun(s.run, f)
		return nil
	}
	return s.replayFromRow(f)
}

// replay places the viewer of a run at the run's beginning, wherever that is by now.
func (s *stream) replay(f feed.Follow) error {
	found, err := s.viewer.FromStart(s.ctx, s.run.GetOrdinal())
	if err == nil && !found && s.run.LastEvent != nil && s.run.GetLastEvent() <= 1 && !hasEnded(s.run) {
		found, err = s.viewer.AwaitStart(s.ctx, s.run.GetOrdinal()) // it has begun just now
	}
	if err != nil {
		return err
	}
	if found {
		s.viewer.FollowRun(s.run, f)
		return nil
	}
	return s.replayFromRow(f)
}

// replayFromRow is replay for a run that the log does not have, or not from the
// cursor on.
func (s *stream) replayFromRow(f feed.Follow) error {
	res, err := s.api.cfg.Runs.GetRun(s.ctx, &agentv1.GetRunRequest{Id: s.run.GetId()})
	if err != nil {
		return err
	}
	s.run = res.GetRun()
	if hasEnded(s.run) {
		snap, err := s.viewer.Snapshot(s.ctx)
		if err != nil {
			return err
		}
		s.opening = dialect.Plain{}.Append(s.viewer.AppendSnapshot(s.opening, snap), feed.EndOf(s.run))
		s.over = true
		return nil
	}
	s.viewer.FollowRun(s.run, f)
	if s.run.LastEvent == nil {
		return nil // nothing has happened yet: it is all to come
	}
	return s.snapshot()
}

// Origin is the truth behind the feed: agent-runner.
type Origin struct {
	Conversations agentv1connect.ConversationServiceClient
	Runs          agentv1connect.RunServiceClient
}

// Run implements feed.Source.
func (o Origin) Run(ctx context.Context, run id.Run) (*agentv1.Run, error) {
	res, err := o.Runs.GetRun(ctx, &agentv1.GetRunRequest{Id: run.String()})
	return res.GetRun(), err
}

// Events implements feed.Source.
func (o Origin) Events(ctx context.Context, session id.Session, from feed.Position, page string) ([]*agentv1.LoggedEvent, string, error) {
	res, err := o.Runs.ListEvents(ctx, &agentv1.ListEventsRequest{SessionId: session.String(), RunOrdinal: from.Run, Number: from.Number, PageToken: page})
	return res.GetEvents(), res.GetNextPageToken(), err
}

// Snapshot implements feed.Source.
func (o Origin) Snapshot(ctx context.Context, session id.Session) (feed.Snapshot, error) {
	res, err := o.Conversations.GetSession(ctx, &agentv1.GetSessionRequest{Id: session.String()})
	if err != nil {
		return feed.Snapshot{}, err
	}
	d, err := viewDetails(res, false)
	if err != nil {
		return feed.Snapshot{}, err
	}
	data, err := marshal(SnapshotEvent{Type: "snapshot", SessionDetails: d})
	if err != nil {
		return feed.Snapshot{}, fmt.Errorf("write a snapshot of session %s: %w", session, err)
	}
	return feed.Snapshot{Data: data, Contents: feed.ContentsOf(res.GetLastEvent(), res.GetActiveRun())}, nil
}
