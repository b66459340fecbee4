package bus

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"signalbox.dev/pkg/subject"
)

// Streams monitors the streams that a service depends on: Ready reports whether they work,
// and Run repairs what a client can repair.
type Streams struct {
	bus     *Bus
	streams []subject.Stream
	owner   bool
}

// Reads returns a monitor of streams that a service only reads.
func (b *Bus) Reads(streams []subject.Stream) *Streams { return &Streams{bus: b, streams: streams} }

// Owns returns a monitor of streams that a service creates again if the server has lost
// them. Its user must be allowed to.
func (b *Bus) Owns(streams []subject.Stream) *Streams {
	return &Streams{bus: b, streams: streams, owner: true}
}

const (
	checkInterval = 500 * time.Millisecond
	checkTimeout  = time.Second             // a stream that does not reply by then has no leader
	switchAfter   = 2 * time.Second         // without a leader
	switchAgain   = 6 * time.Second         // after a switch that did not help: an election may be under way
	quorumAge     = 2500 * time.Millisecond // leader and replicas exchange heartbeats every second
)

// errNoQuorum means that a stream's leader is cut off from its replicas. The leader itself
// notices only after ten seconds.
var errNoQuorum = errors.New("the stream's leader has lost its replicas")

// Ready returns nil if the server replies and each of the streams exists and has a leader,
// within two seconds unless ctx has a deadline.
func (s *Streams) Ready(ctx context.Context) error {
	if err := s.bus.Ready(ctx); err != nil {
		return err
	}
	ctx, cancel := atMost(ctx, 2*time.Second)
	defer cancel()
	return s.check(ctx)
}

// Run checks the streams until ctx is done, and returns nil. It switches to another server
// if the present one knows no leader. An owner creates lost streams again, empty: their
// content is queued again from Postgres.
func (s *Streams) Run(ctx context.Context) error {
	t := time.NewTicker(checkInterval)
	defer t.Stop()
	healthy, patience := time.Now(), switchAfter
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
		if !s.bus.nc.IsConnected() {
			healthy = time.Now() // the client itself looks for a server
			continue
		}
		limited, cancel := context.WithTimeout(ctx, checkTimeout)
		err := s.check(limited)
		cancel()
		down := time.Since(healthy)
		if errors.Is(err, errNoQuorum) {
			down += switchAfter // the leader has been cut off for that long already
		}
		switch {
		case err == nil || ctx.Err() != nil:
			healthy, patience = time.Now(), switchAfter
		case lost(err):
			healthy, patience = time.Now(), switchAfter
			if s.owner {
				s.recreate(ctx)
			}
		case down >= patience && len(s.bus.nc.Servers()) > 1:
			s.bus.log.WarnContext(ctx, "switching to another nats server", "from", s.bus.nc.ConnectedUrlRedacted(), "error", err)
			if err := s.bus.nc.ForceReconnect(); err != nil {
				s.bus.log.WarnContext(ctx, "nats server not switched", "error", err)
			}
			healthy, patience = time.Now(), switchAgain
		}
	}
}

// lost reports whether a server with a leader has said that a stream or consumer does not exist.
func lost(err error) bool {
	return errors.Is(err, jetstream.ErrStreamNotFound) || errors.Is(err, jetstream.ErrConsumerNotFound)
}

// check asks for all streams and consumers concurrently. It returns the first error, and
// prefers one about a loss.
func (s *Streams) check(ctx context.Context) error {
	var (
		wg   sync.WaitGroup
		errs = make([]error, len(s.streams))
	)
	for i, stream := range s.streams {
		wg.Go(func() { errs[i] = s.checkStream(ctx, stream) })
	}
	wg.Wait()
	var first error
	for i, err := range errs {
		if err != nil && (first == nil || lost(err) && !lost(first)) {
			first = fmt.Errorf("stream %s: %w", s.streams[i].Config.Name, err)
		}
	}
	return first
}

// checkStream asks for a work queue's consumer, or for a stream without consumers.
func (s *Streams) checkStream(ctx context.Context, want subject.Stream) error {
	for _, c := range want.Consumers {
		consumer, err := s.bus.js.Consumer(ctx, want.Config.Name, c.Durable)
		if err != nil {
			return fmt.Errorf("consumer %s: %w", c.Durable, err)
		}
		if err := quorum(consumer.CachedInfo().Cluster); err != nil {
			return err
		}
	}
	if len(want.Consumers) > 0 {
		return nil
	}
	stream, err := s.bus.js.Stream(ctx, want.Config.Name)
	if err != nil {
		return err
	}
	return quorum(stream.CachedInfo().Cluster)
}

// quorum returns errNoQuorum if a leader has not heard from a majority recently.
func quorum(c *jetstream.ClusterInfo) error {
	if c == nil {
		return nil
	}
	alive := 1 // the leader
	for _, r := range c.Replicas {
		if !r.Offline && r.Active < quorumAge {
			alive++
		}
	}
	if alive <= (len(c.Replicas)+1)/2 {
		return errNoQuorum
	}
	return nil
}

// recreate creates missing streams and consumers. It leaves existing ones alone: Apply
// changes settings. Concurrent calls are harmless.
func (s *Streams) recreate(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	for _, want := range s.streams {
		if err := s.checkStream(ctx, want); !lost(err) {
			continue
		}
		_, err := s.bus.js.CreateStream(ctx, want.Config)
		if err != nil && !errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) {
			s.bus.log.WarnContext(ctx, "lost stream not created again", "stream", want.Config.Name, "error", err)
			continue
		}
		for _, c := range want.Consumers {
			_, err := s.bus.js.CreateConsumer(ctx, want.Config.Name, c)
			if err != nil && !errors.Is(err, jetstream.ErrConsumerExists) {
				s.bus.log.WarnContext(ctx, "lost consumer not created again", "stream", want.Config.Name, "consumer", c.Durable, "error", err)
			}
		}
		s.bus.log.WarnContext(ctx, "lost stream created again", "stream", want.Config.Name)
	}
}
