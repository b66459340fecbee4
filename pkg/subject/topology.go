package subject

import (
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// Names of the streams and their consumers; the streams of the run log are
// named by EventStream.
const (
	Runs      = "RUNS"
	Tools     = "TOOLS"
	Runners   = "runners"   // the consumer of RUNS that all agent-runners share
	Executors = "executors" // the consumer of TOOLS that all tool-executors share
)

// EventStream returns the name of the stream that keeps partition p of the run log.
func EventStream(p int) string { return fmt.Sprintf("EV_%02d", p) }

const (
	// MaxPayload bounds the body of a message. Bigger things are rows or
	// objects, and a message says where they are.
	MaxPayload = 1 << 20
	// MaxMessage bounds a message with its headers; servers are set to it.
	MaxMessage = MaxPayload + 64<<10
	// AckWait is how long a delivery may go without a sign of life before
	// somebody else gets it.
	AckWait = 6 * time.Second
	// InProgress is how often a worker gives that sign.
	InProgress = 2 * time.Second
	// MaxPartitions bounds Options.Partitions: p is two digits.
	MaxPartitions = 100
)

// Options are what differs between a laptop and a cluster.
type Options struct {
	Partitions int // of the run log: 4 when 0
	Replicas   int // of every stream: 1 when 0
}

// Topology is what must stand on a NATS server before the services can work.
// bus.Apply makes it so.
type Topology struct {
	Partitions int
	Streams    []Stream
}

// Stream is one stream with the durable consumers on it.
type Stream struct {
	Config    jetstream.StreamConfig
	Consumers []jetstream.ConsumerConfig
}

// NewTopology returns the topology for o. It refuses what no server could run.
func NewTopology(o Options) (Topology, error) {
	if o.Partitions == 0 {
		o.Partitions = 4
	}
	if o.Replicas == 0 {
		o.Replicas = 1
	}
	if o.Partitions < 1 || o.Partitions > MaxPartitions {
		return Topology{}, fmt.Errorf("the run log cannot have %d partitions: choose 1 to %d", o.Partitions, MaxPartitions)
	}
	if o.Replicas < 1 || o.Replicas > 5 {
		return Topology{}, fmt.Errorf("a stream cannot have %d replicas: choose 1 on a single server, 3 (or 5) in a cluster", o.Replicas)
	}
	t := Topology{Partitions: o.Partitions, Streams: []Stream{
		queue(o, Runs, AllRuns, Runners, "Runs that want a runner."),
		queue(o, Tools, AllTools, Executors, "Tool calls that want an executor."),
	}}
	for p := range o.Partitions {
		t.Streams = append(t.Streams, events(o, p))
	}
	return t, nil
}

// Queue returns the work queue of that name.
func (t Topology) Queue(name string) []Stream {
	return slices.DeleteFunc(slices.Clone(t.Streams), func(s Stream) bool { return s.Config.Name != name })
}

// Log returns the streams of the run log.
func (t Topology) Log() []Stream {
	return slices.DeleteFunc(slices.Clone(t.Streams), func(s Stream) bool { return len(s.Consumers) > 0 })
}

// queue is a work queue: a message is there until it is acked, and a full queue
// refuses new ones, which is the back-pressure.
//
// MaxBytes is a reservation: the server sets it aside from max_file_store when
// the stream is made, whether it is used or not. These are sized for messages
// that carry ids (a few hundred bytes), at MaxMsgs.
func queue(o Options, name, filter, consumer, description string) Stream {
	return Stream{
		Config: jetstream.StreamConfig{
			Name:        name,
			Description: description,
			Subjects:    []string{filter},
			Retention:   jetstream.WorkQueuePolicy,
			Storage:     jetstream.FileStorage,
			Discard:     jetstream.DiscardNew,
			MaxMsgs:     100_000,
			MaxBytes:    128 << 20,
			MaxMsgSize:  MaxMessage,
			Duplicates:  2 * time.Minute,
			Replicas:    o.Replicas,
		},
		Consumers: []jetstream.ConsumerConfig{{
			Durable:         consumer,
			Description:     "Shared by all replicas of the service.",
			FilterSubject:   filter,
			DeliverPolicy:   jetstream.DeliverAllPolicy,
			AckPolicy:       jetstream.AckExplicitPolicy,
			AckWait:         AckWait,
			MaxDeliver:      -1,
			MaxAckPending:   20_000, // all slots of all replicas
			MaxWaiting:      2_048,  // one pull request per replica and worker loop
			MaxRequestBatch: 256,
		}},
	}
}

// events is the hot tail of one partition of the run log. What is older is read
// from Postgres; when MaxBytes (a reservation, see queue) is reached before
// MaxAge, the oldest goes first and a resume finds it in Postgres as well.
//
// It has no consumer. What copies the log to Postgres reads every message in its
// order, and keeps its place there, in the transaction that writes the copy.
func events(o Options, p int) Stream {
	return Stream{Config: jetstream.StreamConfig{
		Name:        EventStream(p),
		Description: "Run log, hot tail. Republished on live.",
		Subjects:    []string{fmt.Sprintf("ev.%02d.>", p)},
		Retention:   jetstream.LimitsPolicy,
		Storage:     jetstream.FileStorage,
		Discard:     jetstream.DiscardOld,
		MaxAge:      15 * time.Minute,
		MaxBytes:    256 << 20,
		MaxMsgSize:  MaxMessage,
		Duplicates:  20 * time.Second,
		AllowDirect: true,
		Replicas:    o.Replicas,
		RePublish: &jetstream.RePublish{
			Source:      fmt.Sprintf("ev.%02d.>", p),
			Destination: fmt.Sprintf("live.%02d.>", p),
		},
	}}
}
