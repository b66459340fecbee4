// Package archive copies the run log from the bus to Postgres, a moment behind it,
// and reads the copy back. The bus keeps minutes of the log and finds a session's
// events in it by looking at everybody's; the copy is kept for a day and has an
// index. A viewer that comes back reads it instead of the stream.
//
// # Copying
//
// Each partition's stream is copied by one of the replicas, in its order, in
// batches: look where the stream stands, read what is new of all its sessions,
// write it. The place up to which a stream is copied is a row (run_log_positions),
// moved by the same transaction that writes a batch, and only from where the batch
// began. So every event is copied once, whoever tries, and what is copied of a
// stream is always all of it up to that place: what the copy shows of a session has
// no hole that somebody else is about to fill, into which an older claim's event
// could fit. (A consumer on the bus, shared by the replicas, would give neither:
// acknowledgements are no part of a transaction, and two replicas finish in any
// order.) And because rows and place go together, the transaction need not wait
// for the disk: what a crash of Postgres takes is copied again.
//
// No lock says who copies. The replica that wrote last goes on. The others look at
// times, and one that finds the same place twice, with something behind it, takes
// over; should both write, the place lets one through.
//
// # Rows
//
// A row (chunk) holds events of one session, run and epoch with consecutive
// numbers, so that the canonical order of the log (no event of an epoch older than
// one seen of its run, none whose number was seen) can be told from the rows
// without opening them. Nothing is left out in copying, reading does that.
//
// # Reading
//
// List finds the row that has an event and goes on from there by the rows' ids. It
// stops before anything that does not follow from what it has returned: a number
// is skipped, a run goes on before where it was (its stream was lost), a run begins
// although the one before has not ended. Who wants the rest reads the stream.
//
// # Goroutines
//
// Run has one for each partition and one that deletes what is old. A copier keeps
// what it knows to itself; two at a time write.
//
// # If it dies here
//
// A copier that dies, at whatever point, has either moved the place or not, and the
// next one goes on from it. A stream that is lost and made again shows by when it
// was made, and one that lost its newest messages by being shorter than what was
// copied; both are copied from their beginning, and readers drop what comes twice.
// While Postgres is away the place stands still; events that the bus drops in the
// meantime, after a quarter of an hour, are lost to the copy, which counts them. A
// session that is deleted takes its rows along (a trigger of the table), and what
// of it is copied later is dropped, because the session is not there.
package archive

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"signalbox.dev/pkg/bus"
	"signalbox.dev/pkg/panics"
	"signalbox.dev/pkg/pg"
	"signalbox.dev/pkg/subject"
)

// Config is what an archive works with.
type Config struct {
	DB         *pg.DB
	Bus        *bus.Bus
	Log        *slog.Logger
	Registerer prometheus.Registerer
	// Partitions of the run log.
	Partitions int
	// Delay is how long events are gathered before they are copied.
	Delay time.Duration
	// Keep is how long the copy is kept.
	Keep time.Duration
}

// writers bounds the transactions at a time: the copy is in nobody's way.
const writers = 2

// Archive copies the run log and reads the copy.
type Archive struct {
	cfg        Config
	metrics    *metrics
	writeSlots chan struct{} // holds one element for each transaction under way
}

// New returns an archive; nothing is copied before Run.
func New(cfg Config) (*Archive, error) {
	if cfg.Delay <= 0 || cfg.Keep <= 0 || cfg.Partitions < 1 {
		return nil, errors.New("archive: delay, time to keep and partitions must be positive")
	}
	return &Archive{cfg: cfg, metrics: newMetrics(cfg.Registerer), writeSlots: make(chan struct{}, writers)}, nil
}

// Run copies until ctx is done, and then what there still is. It returns nil.
func (a *Archive) Run(ctx context.Context) error {
	var all sync.WaitGroup
	for p := range a.cfg.Partitions {
		c := &copier{Archive: a, stream: subject.EventStream(p), log: a.cfg.Log.With("stream", subject.EventStream(p))}
		all.Go(func() {
			_ = panics.Supervise(ctx, c.log, "archive", func(ctx context.Context) error { c.run(ctx); return nil })
		})
	}
	all.Go(func() {
		_ = panics.Supervise(ctx, a.cfg.Log, "archive expiry", func(ctx context.Context) error { a.expire(ctx); return nil })
	})
	all.Wait()
	return nil
}
