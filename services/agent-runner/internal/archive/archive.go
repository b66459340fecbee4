// Package archive copies the run log from the bus to Postgres, with a short delay, and reads
// the copy. The bus keeps the log for minutes and has no index of sessions; the copy is kept
// for a day and has one. A viewer that returns reads the copy instead of the stream.
//
// # Copying
//
// One of the replicas copies each partition's stream, in order and in batches: it reads the
// state of the stream, reads the new events of all its sessions, and writes them. The
// position up to which a stream is copied is a row of run_log_positions. The transaction that
// writes a batch also advances the position, and only if it still is where the batch began.
// So every event is copied once, whichever replicas try, and the copy of a stream is complete
// up to its position: it has no hole that another replica is about to fill and into which an
// event of an older claim could fit. (A consumer on the bus, shared by the replicas, would
// guarantee neither: acknowledgements are not part of the transaction, and two replicas
// finish in any order.) Because rows and position are written together, the transaction need
// not wait for the disk: what a crash of Postgres loses is copied again.
//
// No lock decides who copies. The replica that wrote last continues. The others check the
// stream and, if it has grown, the position at intervals, and one that finds the position
// unchanged while the stream has more takes over. If two replicas write, only one advances it.
//
// # Rows
//
// A row (chunk) holds events of one session, run and epoch with consecutive numbers, so that
// the canonical order of the log can be computed without decoding the events. In that order
// an event is dropped if its epoch is older than one seen of its run, or if its number was
// seen. Copying leaves nothing out; reading does.
//
// # Reading
//
// List finds the row that has an event and continues from there by the rows' ids. It stops
// before a row that does not follow from what it has returned: a number is missing, a run
// goes back because its stream was lost, or a run begins although the previous one has not
// ended. The caller reads the rest from the stream.
//
// # Goroutines
//
// Run has one goroutine for each partition and one that deletes old rows. Copiers share no
// state except writeSlots, which lets two of them write at a time.
//
// # What happens on a crash
//
// A copier that dies has either advanced the position or not, and the next one continues from
// it. A stream that was lost and created again is recognized by its creation time, and one
// that lost its newest messages by being shorter than the copy. Both are copied from their
// beginning, and readers drop duplicates. While Postgres is unavailable the position does not
// advance. Events that the bus drops in the meantime, after a quarter of an hour, are missing
// from the copy and counted by a metric. A trigger deletes the rows of a deleted session;
// events of it that come later are not copied, because the session does not exist.
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

// Config has an archive's dependencies and settings.
type Config struct {
	DB         *pg.DB
	Bus        *bus.Bus
	Log        *slog.Logger
	Registerer prometheus.Registerer
	// Partitions of the run log.
	Partitions int
	// Delay is how long events are collected before they are copied.
	Delay time.Duration
	// Keep is how long the copy is kept.
	Keep time.Duration
}

// writers bounds concurrent transactions, so that copying leaves connections to others.
const writers = 2

// Archive copies the run log and reads the copy.
type Archive struct {
	cfg        Config
	metrics    *metrics
	writeSlots chan struct{} // holds an element for each open transaction
}

// New returns an archive. Nothing is copied until Run is called.
func New(cfg Config) (*Archive, error) {
	if cfg.Delay <= 0 || cfg.Keep <= 0 || cfg.Partitions < 1 {
		return nil, errors.New("archive: delay, time to keep and partitions must be positive")
	}
	return &Archive{cfg: cfg, metrics: newMetrics(cfg.Registerer), writeSlots: make(chan struct{}, writers)}, nil
}

// Run copies until ctx is done, and then copies the rest. It returns nil.
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
