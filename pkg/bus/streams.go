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

// Streams are the streams that a service cannot work without. Ready tells whether they
// work; Run sees to it, as far as it can be done from here.
type Streams struct {
	bus     *Bus
	streams []subject.Stream
	owner   bool
}

// Reads returns streams that a service reads.
func (b *Bus) Reads(streams []subject.Stream) *Streams { return &Streams{bus: b, streams: streams} }

// Owns returns streams that a service makes again when the server has lost them. Its user
// must be allowed to create them.
func (b *Bus) Owns(streams []subject.Stream) *Streams {
	return &Streams{bus: b, streams: streams, owner: true}
}

const (
	lookEvery   = 500 * time.Millisecond  // between two looks of Run
	lookTimeout = time.Second             // what has not answered by then has no leader
	moveAfter   = 2 * time.Second         // without a leader
	moveAgain   = 6 * time.Second         // when that did not help: a cluster may be choosing one
	quorumAge   = 2500 * time.Millisecond // replicas hear of their leader each second
)

// errNoQuorum means that a stream's leader is cut off from its replicas and does not know
// it yet: it takes ten seconds to notice.
var errNoQuorum = errors.New("the leader hears nothing from its replicas")

// Ready returns nil when the server answers and each of the streams exists and has a
// leader. Without a deadline in ctx it waits two seconds for that.
func (s *Streams) Ready(ctx context.Context) error {
	if err := s.bus.Ready(ctx); err != nil {
		return err
	}
	ctx, cancel := atMost(ctx, 2*time.Second)
	defer cancel()
	return s.look(ctx)
}

// Run looks at the streams until ctx is done, and returns nil. From a server that knows no
// leader it moves to another one; what its owner finds lost, with the server's disk, it
// makes again, empty: what was in there is queued again from Postgres.
func (s *Streams) Run(ctx context.Context) error {
	t := time.NewTicker(lookEvery)
	defer t.Stop()
	good, patience := time.Now(), moveAfter
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
		if !s.bus.nc.IsConnected() {
			good = time.Now() // the client looks for a server by itself
			continue
		}
		asking, cancel := context.WithTimeout(ctx, lookTimeout)
		err := s.look(asking)
		cancel()
		silence := time.Since(good)
		if errors.Is(err, errNoQuorum) {
			silence += moveAfter // it has been cut off for that long already
		}
		switch {
		case err == nil || ctx.Err() != nil:
			good, patience = time.Now(), moveAfter
		case lost(err):
			good, patience = time.Now(), moveAfter
			if s.owner {
				s.heal(ctx)
			}
		case silence >= patience && len(s.bus.nc.Servers()) > 1:
			s.bus.log.WarnContext(ctx, "moving to another nats server", "from", s.bus.nc.ConnectedUrlRedacted(), "error", err)
			if err := s.bus.nc.ForceReconnect(); err != nil {
				s.bus.log.WarnContext(ctx, "not moved", "error", err)
			}
			good, patience = time.Now(), moveAgain
		}
	}
}

// lost reports whether a server that has a leader says that something does not exist.
func lost(err error) bool {
	return errors.Is(err, jetstream.ErrStreamNotFound) || errors.Is(err, jetstream.ErrConsumerNotFound)
}

// look asks for all streams and consumers at once. Its error is one of those found, one
// that says what is lost before others.
func (s *Streams) look(ctx context.Context) error {
	var (
		wg   sync.WaitGroup
		errs = make([]error, len(s.streams))
	)
	for i, stream := range s.streams {
		wg.Go(func() { errs[i] = s.lookAt(ctx, stream) })
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

// lookAt asks for a work queue's consumer, which nobody can do without, or else for the
// stream.
func (s *Streams) lookAt(ctx context.Context, want subject.Stream) error {
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

// quorum returns errNoQuorum when a leader has not heard of most of its replicas lately.
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

// heal creates what is not there. What is there stays as it is: Apply changes settings.
// Two who heal at once do no harm.
func (s *Streams) heal(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	for _, want := range s.streams {
		if err := s.lookAt(ctx, want); !lost(err) {
			continue
		}
		_, err := s.bus.js.CreateStream(ctx, want.Config)
		if err != nil && !errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) {
			s.bus.log.WarnContext(ctx, "lost stream not made again", "stream", want.Config.Name, "error", err)
			continue
		}
		for _, c := range want.Consumers {
			_, err := s.bus.js.CreateConsumer(ctx, want.Config.Name, c)
			if err != nil && !errors.Is(err, jetstream.ErrConsumerExists) {
				s.bus.log.WarnContext(ctx, "lost consumer not made again", "stream", want.Config.Name, "consumer", c.Durable, "error", err)
			}
		}
		s.bus.log.WarnContext(ctx, "lost stream made again", "stream", want.Config.Name)
	}
}
