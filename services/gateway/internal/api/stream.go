package api

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"strconv"

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

// retryMS is how long EventSource waits before it reconnects.
const retryMS = 1000

// stream is one viewer's connection.
type stream struct {
	api     *API
	ctx     context.Context //nolint:containedctx // ends with the connection, the token or the membership
	viewer  *feed.Viewer
	count   *auth.Stream
	run     *agentv1.Run // nil for a whole session
	opening []byte       // what is written before the feed's events
	over    bool         // no events follow opening
	chunks  *chunks      // of a UI message stream, otherwise nil
	headers http.Header  // of another dialect that is a fold, otherwise nil
	left    func()       // called if the client leaves before the end; may be nil
	missed  string       // how many events come first that were there before, if the client resumes and that is known
	once    bool         // the client cannot ask for the answer again: left is called whatever the cause
}

// reply returns the stream as the answer. After an error it closes the stream.
func (s *stream) reply(err error) (*reply, error) {
	if err != nil {
		if s.left != nil && (s.once || s.ctx.Err() != nil) {
			s.left()
		}
		leave(s.viewer, err)
		err = withReason(s.ctx, err)
		if s.once {
			err = s.api.runStopped(s.ctx, err)
		}
		s.count.Close()
		return nil, err
	}
	return &reply{s.serve}, nil
}

// serve writes the stream, or attaches it to the feed together with its connection. Unless
// the stream is complete, the connection is aborted, so that clients notice.
func (s *stream) serve(hc huma.Context) {
	r, w := humago.Unwrap(hc)
	h := w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-cache, no-transform")
	h.Set("X-Accel-Buffering", "no")
	if s.run != nil {
		h.Set("X-Run-Id", s.run.GetId())
	}
	if s.missed != "" {
		h.Set("X-Missed-Events", s.missed)
	}
	opening := append(sse.AppendHeartbeat(sse.AppendRetry(nil, retryMS)), s.opening...)
	if s.chunks != nil {
		s.chunks.setHeaders(h, s.run.GetId())
	}
	maps.Copy(h, s.headers)
	if s.chunks != nil || s.headers != nil {
		opening = append(sse.AppendHeartbeat(nil), s.opening...)
	}
	if s.once {
		s.viewer.LeaveLast()
	}
	if r.Method != http.MethodHead && !s.over && s.attach(w, r, opening) {
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
		if s.left != nil && (s.once || r.Context().Err() != nil && !errors.Is(err, feed.ErrDraining)) {
			s.left()
		}
		s.api.cfg.Log.DebugContext(s.ctx, "stream cut", "session", s.viewer.Session(), "error", err)
		panic(http.ErrAbortHandler)
	}
}

// attach hijacks the connection and gives it to the feed, which needs neither a goroutine
// nor the request for it. It returns false if the connection cannot be hijacked.
func (s *stream) attach(w http.ResponseWriter, r *http.Request, opening []byte) bool {
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
		if s.left != nil && (errors.Is(err, feed.ErrLeft) || s.once && err != nil) {
			s.api.cfg.Feed.Go(s.left)
		}
		if err != nil {
			log.Debug("stream cut", "session", viewer.Session(), "error", err) //nolint:sloglint // the request has ended
		}
	})
	return true
}

// sink writes a stream through net/http. The server bounds the time of a write.
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

// WatchInput says where a viewer resumes.
type WatchInput struct {
	LastEventID string `header:"Last-Event-ID" doc:"The id of the last event received. EventSource sends it automatically."`
	After       string `query:"after" doc:"The same, for clients that cannot set headers. The header takes precedence."`
	Workspace   string `query:"workspace_id" doc:"The workspace's id, for clients that cannot set headers."`
}

// cursor returns the id of the event to resume after, or "".
func (in *WatchInput) cursor() string { return cmp.Or(in.LastEventID, in.After) }

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

// withReason returns the reason why the stream's permission ended, if that caused err.
func withReason(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); errors.Is(cause, auth.ErrExpired) || errors.Is(cause, auth.ErrRevoked) {
		return cause
	}
	return err
}

func (a *API) watchSession(ctx context.Context, in *struct {
	SessionPath
	WatchInput
	UIVersion
	Format string `query:"format" enum:"ui" doc:"ui streams the chunks of the AI SDK's UI message stream, from the beginning of the active run, for all runs; the last event's id is then not used."`
},
) (*reply, error) {
	s, err := a.openStream(ctx, in.ID.value)
	if err != nil {
		return nil, err
	}
	if in.Format == "ui" {
		s.chunks = &chunks{session: in.ID.value}
		return s.reply(s.watchChunks(in.ID.value, in.version()))
	}
	return s.reply(s.resumeSession(in.ID.value, in.cursor()))
}

// watchChunks positions a session's viewer at the beginning of the active run, as far as the log
// has it.
func (s *stream) watchChunks(session id.Session, version int) error {
	res, err := s.api.cfg.Conversations.GetSession(s.ctx, &agentv1.GetSessionRequest{Id: session.String(), WithoutMessages: true})
	if err != nil {
		return err
	}
	if run := res.GetActiveRun(); run != nil {
		if _, err := s.viewer.FromStart(s.ctx, run.GetOrdinal()); err != nil {
			return err
		}
	}
	s.viewer.Watch(feed.Follow{Reader: &dialect.Reader{Fold: dialect.UIStream{Version: version}, Session: true}})
	return nil
}

// resumeSession positions a session's viewer after the event with the given id, or begins
// the stream with a snapshot.
func (s *stream) resumeSession(session id.Session, cursor string) error {
	// The viewer is open already: whatever is committed after this call arrives as events.
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
		if err != nil {
			return err
		}
		if found {
			if n, ok := s.viewer.Missed(); ok {
				s.missed = strconv.Itoa(n)
			}
			return nil
		}
		// The log no longer has the event, but nothing has happened since.
		if c.Position() == p && res.GetActiveRun() == nil {
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

// snapshot begins the stream with a snapshot of the session.
func (s *stream) snapshot() error {
	snap, err := s.viewer.Snapshot(s.ctx)
	if err != nil {
		return err
	}
	s.opening = s.viewer.AppendSnapshot(s.opening, snap)
	return s.viewer.Restart(s.ctx, snap)
}

// begin positions the viewer of a run that was just created at the run's beginning.
func (s *stream) begin(f feed.Follow) error {
	found, err := s.viewer.FromStartOfNew(s.ctx, s.run.GetOrdinal())
	return s.followIfFound(found, err, f)
}

// replay positions the viewer of a run at the run's beginning.
func (s *stream) replay(f feed.Follow) error {
	found, err := s.viewer.FromStart(s.ctx, s.run.GetOrdinal())
	if err == nil && !found && s.run.LastEvent != nil && s.run.GetLastEvent() <= 1 && !hasEnded(s.run) {
		found, err = s.viewer.AwaitStart(s.ctx, s.run.GetOrdinal()) // the run has just begun
	}
	return s.followIfFound(found, err, f)
}

// followIfFound follows the run from the position that was found, or replays it from its row.
func (s *stream) followIfFound(found bool, err error, f feed.Follow) error {
	if err != nil {
		return err
	}
	switch {
	case f.Reader != nil && (!found || s.viewer.MeetsHole()):
		return s.rebuild(f)
	case !found:
		return s.replayFromRow(f)
	}
	s.viewer.FollowRun(s.run, f)
	return nil
}

// replayFromRow is replay for a run whose events, or those after the cursor, are no longer in
// the log.
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
		return nil // no event yet: all will arrive live
	}
	return s.snapshot()
}

// Origin is the feed's source: agent-runner.
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
	d, err := viewDetails(res, 0)
	if err != nil {
		return feed.Snapshot{}, err
	}
	data, err := marshal(SnapshotEvent{Type: "snapshot", SessionDetails: d})
	if err != nil {
		return feed.Snapshot{}, fmt.Errorf("write a snapshot of session %s: %w", session, err)
	}
	return feed.Snapshot{Data: data, Contents: feed.ContentsOf(res.GetLastEvent(), res.GetActiveRun())}, nil
}
