package subject

import (
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// Names of streams and their consumers. EventStream names the streams of the run log.
const (
	Runs      = "RUNS"
	Tools     = "TOOLS"
	Runners   = "runners"   // the consumer of RUNS that all agent-runners share
	Executors = "executors" // the consumer of TOOLS that all tool-executors share
)

// EventStream returns the name of the stream that keeps partition p of the run log.
func EventStream(p int) string { return fmt.Sprintf("EV_%02d", p) }

const (
	// MaxPayload bounds the body of a message. Larger data is stored elsewhere, and the
	// message refers to it.
	MaxPayload = 1 << 20
	// MaxMessage bounds a message with its headers; it is the servers' max_payload.
	MaxMessage = MaxPayload + 64<<10
	// AckWait is how long a delivery may go without a heartbeat before it is redelivered.
	AckWait = 6 * time.Second
	// InProgress is the interval of heartbeats.
	InProgress = 2 * time.Second
	// MaxPartitions bounds Options.Partitions: p is two digits.
	MaxPartitions = 100
)

// Options differ between a laptop and a cluster.
type Options struct {
	Partitions int // of the run log; 0 means 4
	Replicas   int // of every stream; 0 means 1
}

// Topology is the streams that the services need. bus.Apply creates them.
type Topology struct {
	Partitions int
	Streams    []Stream
}

// Stream is one stream with the durable consumers on it.
type Stream struct {
	Config    jetstream.StreamConfig
	Consumers []jetstream.ConsumerConfig
}

// NewTopology returns the topology for o, or an error for options that no server supports.
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

// queue returns a work queue: it keeps a message until it is acked, and a full queue refuses
// new ones, which is the back-pressure.
//
// The server reserves MaxBytes from max_file_store when the stream is created. It is sized
// for MaxMsgs messages with ids (a few hundred bytes).
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

// events returns the hot tail of a partition of the run log. Older events are in Postgres. If
// MaxBytes (a reservation, see queue) is reached before MaxAge, the oldest events are removed
// early, and a resume reads them from Postgres, too.
//
// It has no consumer. The archiver copies the log to Postgres in order, and stores its
// position there, in the transaction that writes the copy.
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
