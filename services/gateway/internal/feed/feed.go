package feed

import (
	"context"
	"errors"
	"iter"
	"log/slog"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"

	"signalbox.dev/pkg/bus"
	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/panics"
	"signalbox.dev/pkg/subject"
	agentv1 "signalbox.dev/proto/signalbox/agent/v1"

	"signalbox.dev/services/gateway/internal/dialect"
)

// Bus is the feed's access to the bus; see package bus.
type Bus interface {
	SubscribeChan(subj string, ch chan *nats.Msg) (*bus.Subscription, error)
	OnReconnect(fn func()) (stop func())
	Flush(ctx context.Context) error
	Connected() bool
	Stream(ctx context.Context, stream string) (bus.StreamState, error)
	Last(ctx context.Context, stream, subj string) (*bus.Stored, error)
	Read(ctx context.Context, stream, subj string, after, through uint64) iter.Seq2[*bus.Stored, error]
}

// Source is the owner of runs and sessions, agent-runner. Contexts carry a viewer's identity.
type Source interface {
	// Run returns a run's row.
	Run(ctx context.Context, run id.Run) (*agentv1.Run, error)
	// Snapshot returns the current state of a session.
	Snapshot(ctx context.Context, session id.Session) (Snapshot, error)
	// Events returns a page of a session's recorded log, which is a moment behind the log:
	// from the event at from on or, with next of the previous page, after that page. An error
	// of kind fault.NotFound means that the event is not recorded.
	Events(ctx context.Context, session id.Session, from Position, page string) (events []*agentv1.LoggedEvent, next string, err error)
}

// Snapshot is the state of a session: the data of a snapshot event, one line of JSON, and the
// events that it contains.
type Snapshot struct {
	Data     []byte
	Contents Contents

	taken time.Time // when it was requested
	until place     // the log's head then
}

// Config configures a Feed. Zero durations and sizes stand for the defaults in the comments.
type Config struct {
	Bus        Bus
	Source     Source
	Dialect    dialect.Dialect
	Log        *slog.Logger
	Metrics    prometheus.Registerer // nil: none
	Partitions int                   // of the run log

	Linger      time.Duration // how long a topic without viewers is kept: 60 s
	Heartbeat   time.Duration // of a silent stream: 15 s
	Silence     time.Duration // of a run, after which the log is compared: 1.5 s
	Pace        time.Duration // between two look-ups of a silent run: 5 s
	Idle        time.Duration // between two comparisons of a session without a run: 30 s
	MaxBehind   time.Duration // how long a viewer may be behind: 30 s
	DrainWindow time.Duration // over which streams end: 5 s
	RingFrames  int           // 512
	RingBytes   int           // 4 MiB
	BehindBytes uint64        // how far a viewer may be behind: 2 MiB
	GroupSize   int           // viewers that a worker writes to in one turn: 200

	// Rest is the pause of a group of attached viewers after a write, multiplied by their
	// number, at most 30 ms: 300 µs.
	Rest time.Duration

	// BacklogBytes bounds the backlogs of all viewers together. Beyond it viewers get tails
	// in small pages: 64 MiB.
	BacklogBytes int64
}

// Errors that end a stream on our side. The caller aborts the connection, so that the client
// resumes with its last event's id.
var (
	ErrDraining = errors.New("this gateway is draining")
	ErrLost     = errors.New("the session's feed was lost")
	ErrGone     = errors.New("the session is gone")
	ErrSlow     = errors.New("the viewer is too far behind")
	ErrLeft     = errors.New("the viewer has left")
)

const (
	inbox       = 8192             // live messages queued for a worker
	callTimeout = 10 * time.Second // timeout of a call to Source
)

// Feed delivers the run log to viewers. It is safe for concurrent use.
type Feed struct {
	cfg         Config
	metrics     *metrics
	shards      []*shard
	comparisons tokens          // for comparisons with the log
	tails       *turns          // for tails
	backlogs    atomic.Int64    // bytes of all backlogs
	life        context.Context //nolint:containedctx // ends the workers and goroutines
	end         context.CancelFunc
	draining    chan struct{}
	drain       sync.Once
	drained     chan struct{}                     // closed when the feed drains and holds no connection
	jitter      func(time.Duration) time.Duration // a random duration below the given one

	mu      sync.Mutex // guards what follows
	stopped bool       // no goroutine is started any more
	conns   int        // open attached connections
	work    sync.WaitGroup
}

// New returns a Feed. Run must be running for it to work.
func New(cfg Config) *Feed {
	setDefault(&cfg.Linger, time.Minute)
	setDefault(&cfg.Heartbeat, 15*time.Second)
	setDefault(&cfg.Silence, 1500*time.Millisecond)
	setDefault(&cfg.Pace, 5*time.Second)
	setDefault(&cfg.Idle, 30*time.Second)
	setDefault(&cfg.MaxBehind, 30*time.Second)
	setDefault(&cfg.DrainWindow, 5*time.Second)
	setDefault(&cfg.RingFrames, 512)
	setDefault(&cfg.RingBytes, 4<<20)
	setDefault(&cfg.BehindBytes, 2<<20)
	setDefault(&cfg.GroupSize, 200)
	setDefault(&cfg.Rest, 300*time.Microsecond)
	setDefault(&cfg.BacklogBytes, 64<<20)
	f := &Feed{cfg: cfg, comparisons: make(tokens, maxComparisons), tails: newTurns(), draining: make(chan struct{}), drained: make(chan struct{}), jitter: rand.N[time.Duration]}
	f.life, f.end = context.WithCancel(context.Background())
	for i := range max(1, min(runtime.GOMAXPROCS(0), 16)) {
		f.shards = append(f.shards, newShard(f, i))
	}
	f.metrics = newMetrics(cfg.Metrics, func() float64 { return float64(f.backlogs.Load()) })
	return f
}

func setDefault[T int | int64 | uint64 | time.Duration](v *T, d T) {
	if *v == 0 {
		*v = d
	}
}

// Run works until ctx is done, then aborts the open streams and returns nil. Call Drain and
// wait for Drained before, so that streams end spread over the drain window.
func (f *Feed) Run(ctx context.Context) error {
	var workers sync.WaitGroup
	for _, s := range f.shards {
		workers.Go(func() {
			_ = panics.Supervise(f.life, f.cfg.Log, "feed worker", func(context.Context) error { s.run(); return nil })
		})
	}
	again := make(chan struct{}, 1)
	workers.Go(func() {
		_ = panics.Supervise(f.life, f.cfg.Log, "feed reconnects", func(context.Context) error { f.watchConnection(again); return nil })
	})
	stop := f.cfg.Bus.OnReconnect(func() {
		select {
		case again <- struct{}{}:
		default: // a comparison is due already
		}
	})
	<-ctx.Done()
	stop()
	f.end()
	workers.Wait()
	f.mu.Lock()
	f.stopped = true
	f.mu.Unlock()
	f.work.Wait()
	return nil
}

// Go runs fn, which may block, on a goroutine that Run waits for. It does not run fn if the feed has
// stopped.
func (f *Feed) Go(fn func()) { f.start(fn) }

// start runs fn on a goroutine that Run waits for. It returns false if the feed has stopped.
func (f *Feed) start(fn func()) bool {
	if !f.enter() {
		return false
	}
	go func() {
		defer f.work.Done()
		fn()
	}()
	return true
}

// enter makes Run wait until the caller calls f.work.Done. It returns false if the feed has stopped.
func (f *Feed) enter() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.stopped {
		return false
	}
	f.work.Add(1)
	return true
}

// count adds n to the number of attached connections.
func (f *Feed) count(n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.conns += n
	f.checkDrained()
}

// checkDrained closes drained if the feed drains and has no connections. The lock is held.
func (f *Feed) checkDrained() {
	if f.conns > 0 || !isClosed(f.draining) || isClosed(f.drained) {
		return
	}
	close(f.drained)
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// Drain refuses new viewers and ends the open streams spread over the drain window, those that cannot
// be resumed at its end, as well as requests that wait for the end of a run. It returns at once.
func (f *Feed) Drain() {
	f.drain.Do(func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		close(f.draining)
		f.checkDrained()
	})
}

// Drained is closed after Drain when no attached connection is left.
func (f *Feed) Drained() <-chan struct{} { return f.drained }

// Draining returns a channel that is closed when Drain is called.
func (f *Feed) Draining() <-chan struct{} { return f.draining }

// Open is Join and Ready.
func (f *Feed) Open(ctx context.Context, session id.Session) (*Viewer, error) {
	v, err := f.Join(ctx, session)
	if err != nil {
		return nil, err
	}
	if err := v.Ready(ctx); err != nil {
		v.Close()
		return nil, err
	}
	return v, nil
}

// Join returns a viewer of a session, positioned at the newest event. It does not wait for the
// log: until Ready has returned, only Close and Forget may be called. The feed calls Source with
// the context's identity for this viewer. The caller closes the viewer.
func (f *Feed) Join(ctx context.Context, session id.Session) (*Viewer, error) {
	actor, err := identity.Require(ctx, identity.Viewer)
	if err != nil {
		return nil, err
	}
	if isClosed(f.draining) {
		return nil, &fault.Error{Kind: fault.Unavailable, Code: "DRAINING", Message: "this gateway is shutting down: try again", RetryAfter: time.Second}
	}
	s := f.shards[subject.Partition(session, len(f.shards))]
	v := &Viewer{feed: f, actor: actor, since: time.Now(), wake: make(chan struct{}, 1)}
	joined := make(chan error, 1)
	join := func() error { return s.join(ctx, v, actor.Workspace, session) }
	if !s.post(func() { joined <- panics.Try(join) }) {
		return nil, unavailable(ErrDraining)
	}
	select {
	case err = <-joined:
	case <-f.life.Done():
		err = ErrDraining
	}
	if err != nil {
		return nil, unavailable(err)
	}
	return v, nil
}

// Connected reports whether the bus is connected, as far as is known. If it is not, Ready may
// take long and fail.
func (f *Feed) Connected() bool { return f.cfg.Bus.Connected() }

func unavailable(err error) error {
	return fault.Wrap(err, fault.Unavailable, "live events are not available at the moment: try again")
}

// watchConnection makes all topics compare with the log after a reconnect, because live events
// were not delivered meanwhile.
func (f *Feed) watchConnection(again <-chan struct{}) {
	for {
		select {
		case <-f.life.Done():
			return
		case <-again:
		}
		for _, s := range f.shards {
			s.post(s.compareAll)
		}
	}
}
