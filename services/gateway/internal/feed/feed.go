package feed

import (
	"context"
	"errors"
	"iter"
	"log/slog"
	"runtime"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"

	"signalbox.dev/pkg/bus"
	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/subject"
	agentv1 "signalbox.dev/proto/signalbox/agent/v1"

	"signalbox.dev/services/gateway/internal/dialect"
)

// Bus is what the feed needs of the bus.
type Bus interface {
	SubscribeChan(subj string, ch chan *nats.Msg) (*bus.Subscription, error)
	Flush(ctx context.Context) error
	Ready(ctx context.Context) error
	Last(ctx context.Context, stream, subj string) (*bus.Stored, error)
	Read(ctx context.Context, stream, subj string, after, through uint64) iter.Seq2[*bus.Stored, error]
}

// Source is the truth behind the log. The contexts carry a viewer's identity.
type Source interface {
	// Run returns a run as it stands now.
	Run(ctx context.Context, run id.Run) (*agentv1.Run, error)
	// Snapshot returns what a session holds now.
	Snapshot(ctx context.Context, session id.Session) (Snapshot, error)
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
	Pulse       time.Duration // between two looks at the bus's connection: 250 ms
	MaxBehind   time.Duration // how long a viewer may be behind: 30 s
	DrainWindow time.Duration // over which streams end: 5 s
	RingFrames  int           // 512
	RingBytes   int           // 4 MiB
	BehindBytes uint64        // how far a viewer may be behind: 2 MiB
}

// Errors that end a stream on our side. The connection is to be cut, not closed:
// the client comes back with its last event's id.
var (
	ErrDraining = errors.New("this gateway is draining")
	ErrLost     = errors.New("the session's feed was lost")
	ErrGone     = errors.New("the session is gone")
	ErrSlow     = errors.New("the viewer is too far behind")
)

const (
	inbox       = 8192             // live messages that wait for a worker
	logReads    = 8                // reads of the log at once, per gateway
	callTimeout = 10 * time.Second // one question to Postgres' keeper
)

// Feed is this gateway's view of the run log. Open may be called from any goroutine.
type Feed struct {
	cfg      Config
	metrics  *metrics
	shards   []*shard
	reads    chan struct{}  // a token for each read of the log
	work     sync.WaitGroup // goroutines that workers started
	draining chan struct{}
	drain    sync.Once
	stopped  chan struct{} // closed when the workers are told to end
}

// New returns a feed that works once Run is called.
func New(cfg Config) *Feed {
	setDefault(&cfg.Linger, time.Minute)
	setDefault(&cfg.Heartbeat, 15*time.Second)
	setDefault(&cfg.Silence, 1500*time.Millisecond)
	setDefault(&cfg.Pace, 5*time.Second)
	setDefault(&cfg.Idle, 30*time.Second)
	setDefault(&cfg.Pulse, 250*time.Millisecond)
	setDefault(&cfg.MaxBehind, 30*time.Second)
	setDefault(&cfg.DrainWindow, 5*time.Second)
	setDefault(&cfg.RingFrames, 512)
	setDefault(&cfg.RingBytes, 4<<20)
	setDefault(&cfg.BehindBytes, 2<<20)
	f := &Feed{cfg: cfg, reads: make(chan struct{}, logReads), draining: make(chan struct{}), stopped: make(chan struct{})}
	for range max(1, min(runtime.GOMAXPROCS(0), 16)) {
		f.shards = append(f.shards, newShard(f))
	}
	f.metrics = newMetrics(cfg.Metrics)
	return f
}

func setDefault[T int | uint64 | time.Duration](v *T, d T) {
	if *v == 0 {
		*v = d
	}
}

// Run works until ctx is done, then cuts what is still open and returns nil.
// Drain first, so that viewers leave one after the other.
func (f *Feed) Run(ctx context.Context) error {
	var workers sync.WaitGroup
	for _, s := range f.shards {
		workers.Go(func() { s.run(ctx) })
	}
	workers.Go(func() { f.watchConnection(ctx) })
	<-ctx.Done()
	close(f.stopped)
	workers.Wait()
	f.work.Wait()
	return nil
}

// Drain lets no viewer in any more and cuts those that are there, spread over the
// drain window. It returns at once.
func (f *Feed) Drain() { f.drain.Do(func() { close(f.draining) }) }

// Open returns a viewer of a session that stands at the newest event: what is
// published after Open returned is not missed. The context's identity is whose
// rights the feed uses for this viewer. The caller closes the viewer.
func (f *Feed) Open(ctx context.Context, session id.Session) (*Viewer, error) {
	actor, err := identity.Require(ctx, identity.Viewer)
	if err != nil {
		return nil, err
	}
	select {
	case <-f.draining:
		return nil, &fault.Error{Kind: fault.Unavailable, Code: "DRAINING", Message: "this gateway is going away: try again", RetryAfter: time.Second}
	default:
	}
	s := f.shards[subject.Partition(session, len(f.shards))]
	v := &Viewer{feed: f, shard: s, actor: actor, wake: make(chan struct{}, 1)}
	joined := make(chan error, 1)
	if !s.post(func() { joined <- s.join(ctx, v, actor.Workspace, session) }) {
		return nil, unavailable(ErrDraining)
	}
	select {
	case err = <-joined:
	case <-f.stopped:
		err = ErrDraining
	}
	if err != nil {
		return nil, unavailable(err)
	}
	select {
	case <-v.topic.opened:
		if err := v.start(); err != nil {
			v.Close()
			return nil, unavailable(err)
		}
		return v, nil
	case <-ctx.Done():
		v.Close()
		return nil, context.Cause(ctx)
	}
}

func unavailable(err error) error {
	return fault.Wrap(err, fault.Unavailable, "live events are not available at the moment: try again")
}

// watchConnection makes all topics look at the log when the connection to the bus
// was lost and is back: what was published meanwhile was not delivered.
func (f *Feed) watchConnection(ctx context.Context) {
	tick := time.NewTicker(f.cfg.Pulse)
	defer tick.Stop()
	up := true
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		err := f.cfg.Bus.Ready(ctx)
		if err == nil && !up {
			for _, s := range f.shards {
				s.post(s.lookAgain)
			}
		}
		up = err == nil
	}
}

// acquire takes a token for reading the log; false when the feed stops.
func (f *Feed) acquire(ctx context.Context) bool {
	select {
	case f.reads <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

func (f *Feed) release() { <-f.reads }
