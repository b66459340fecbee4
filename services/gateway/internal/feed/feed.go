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

// Bus is what the feed needs of the bus.
type Bus interface {
	SubscribeChan(subj string, ch chan *nats.Msg) (*bus.Subscription, error)
	OnReconnect(fn func()) (stop func())
	Flush(ctx context.Context) error
	Connected() bool
	Stream(ctx context.Context, stream string) (bus.StreamState, error)
	Last(ctx context.Context, stream, subj string) (*bus.Stored, error)
	Read(ctx context.Context, stream, subj string, after, through uint64) iter.Seq2[*bus.Stored, error]
}

// Source is the truth behind the log. The contexts carry a viewer's identity.
type Source interface {
	// Run returns a run as it stands now.
	Run(ctx context.Context, run id.Run) (*agentv1.Run, error)
	// Snapshot returns what a session holds now.
	Snapshot(ctx context.Context, session id.Session) (Snapshot, error)
	// Events returns a page of a session's log as it is kept, which is a moment
	// behind: from the event at from on or, with the page before's next, after that.
	// An error of kind fault.NotFound tells that the event is not kept.
	Events(ctx context.Context, session id.Session, from Position, page string) (events []*agentv1.LoggedEvent, next string, err error)
}

// Snapshot is what a session holds: a snapshot event's data, one line of JSON,
// and which events it contains.
type Snapshot struct {
	Data     []byte
	Contents Contents

	taken time.Time // when it was asked for
	until place     // what the log had then
}

// Config says what a feed works with. Zero durations and sizes stand for the
// defaults that New's comment in the code gives.
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

	// Rest is how long viewers of a session with connections are not written to after
	// a write, for each of their group, 30 ms at most: 300 µs.
	Rest time.Duration

	// BacklogBytes is how much all viewers together may have of what was read for
	// them, before they get it in small pages: 64 MiB.
	BacklogBytes int64
}

// Errors that end a stream on our side. The connection is to be cut, not closed:
// the client comes back with its last event's id.
var (
	ErrDraining = errors.New("this gateway is draining")
	ErrLost     = errors.New("the session's feed was lost")
	ErrGone     = errors.New("the session is gone")
	ErrSlow     = errors.New("the viewer is too far behind")
	ErrLeft     = errors.New("the viewer has left")
)

const (
	inbox       = 8192             // live messages that wait for a worker
	callTimeout = 10 * time.Second // one question to Postgres' keeper
)

// Feed is this gateway's view of the run log. Open may be called from any goroutine.
type Feed struct {
	cfg      Config
	metrics  *metrics
	shards   []*shard
	looks    tokens          // for reads of the log that live streams need
	tails    *turns          // for reads of what viewers who come back have missed
	backlogs atomic.Int64    // what viewers' backlogs take
	life     context.Context //nolint:containedctx // the workers' and goroutines' life
	end      context.CancelFunc
	draining chan struct{}
	drain    sync.Once
	drained  chan struct{}                     // closed when the feed drains and holds no connection
	jitter   func(time.Duration) time.Duration // a random duration below the given one

	mu      sync.Mutex // guards what follows
	stopped bool       // no goroutine is begun any more
	conns   int        // connections that were handed over and are open
	work    sync.WaitGroup
}

// New returns a feed that works once Run is called.
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
	f := &Feed{cfg: cfg, looks: make(tokens, looksAtOnce), tails: newTurns(), draining: make(chan struct{}), drained: make(chan struct{}), jitter: rand.N[time.Duration]}
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

// Run works until ctx is done, then cuts what is still open and returns nil.
// Drain first, and wait for Drained, so that viewers leave one after the other.
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
		default: // all will look as it is
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

// start runs fn, which may wait, on a goroutine that Run waits for; false when
// there is none any more.
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

// enter has Run wait for the caller, who calls f.work.Done; false when it is too late.
func (f *Feed) enter() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.stopped {
		return false
	}
	f.work.Add(1)
	return true
}

// count takes connections that came, or went, into account.
func (f *Feed) count(n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.conns += n
	f.checkDrained()
}

// checkDrained tells who waits for it that all are gone. The lock is held.
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

// Drain lets no viewer in any more and cuts those that are there, spread over the
// drain window. It returns at once.
func (f *Feed) Drain() {
	f.drain.Do(func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		close(f.draining)
		f.checkDrained()
	})
}

// Drained is closed when Drain was called and no connection is left that was
// handed over.
func (f *Feed) Drained() <-chan struct{} { return f.drained }

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

// Join returns a viewer of a session that stands at the newest event, and does not
// wait for the log: what that is, is known when Ready has returned, before which the
// viewer is good for Close and Forget only. The context's identity is whose rights
// the feed uses for this viewer. The caller closes the viewer.
func (f *Feed) Join(ctx context.Context, session id.Session) (*Viewer, error) {
	actor, err := identity.Require(ctx, identity.Viewer)
	if err != nil {
		return nil, err
	}
	if isClosed(f.draining) {
		return nil, &fault.Error{Kind: fault.Unavailable, Code: "DRAINING", Message: "this gateway is going away: try again", RetryAfter: time.Second}
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

// Connected reports whether the bus can be reached, as far as is known without
// asking: otherwise Ready may take long, and fail.
func (f *Feed) Connected() bool { return f.cfg.Bus.Connected() }

func unavailable(err error) error {
	return fault.Wrap(err, fault.Unavailable, "live events are not available at the moment: try again")
}

// watchConnection makes all topics look at the log when the connection to the bus
// was lost and is back: what was published meanwhile was not delivered.
func (f *Feed) watchConnection(again <-chan struct{}) {
	for {
		select {
		case <-f.life.Done():
			return
		case <-again:
		}
		for _, s := range f.shards {
			s.post(s.lookAgain)
		}
	}
}
