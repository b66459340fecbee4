package archive

import (
	"fmt"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"signalbox.dev/pkg/bus"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/subject"
	runv1 "signalbox.dev/proto/signalbox/run/v1"
)

// Bounds of one batch and of one chunk. A reader decodes whole chunks. An event over the limit
// has its own chunk.
const (
	maxBatch      = 4096
	maxBatchBytes = 1 << 20
	maxChunk      = 64
	maxChunkBytes = 64 << 10
)

// Field numbers of agent.v1.ListEventsResponse and LoggedEvent. A chunk is encoded as such a
// response, event by event: concatenated encodings are the encoding of the whole.
const (
	eventsField   protowire.Number = 1
	eventField    protowire.Number = 1
	sequenceField protowire.Number = 2
)

// chunk is one row: consecutive events of one claim.
type chunk struct {
	workspace   id.Workspace
	session     id.Session
	run, epoch  int64
	first, last int64 // numbers
	ends        bool
	events      []byte
}

// follows reports whether e can be appended to the chunk.
func (c *chunk) follows(e *runv1.Event, size int) bool {
	return e.GetRunOrdinal() == c.run && e.GetEpoch() == c.epoch && e.GetNumber() == c.last+1 &&
		c.last-c.first+1 < maxChunk && len(c.events)+size <= maxChunkBytes
}

// add appends an encoded event.
func (c *chunk) add(sequence uint64, number int64, event []byte) {
	size := protowire.SizeTag(eventField) + protowire.SizeBytes(len(event)) +
		protowire.SizeTag(sequenceField) + protowire.SizeVarint(sequence)
	b := protowire.AppendTag(c.events, eventsField, protowire.BytesType)
	b = protowire.AppendVarint(b, uint64(size))
	b = protowire.AppendTag(b, eventField, protowire.BytesType)
	b = protowire.AppendBytes(b, event)
	b = protowire.AppendTag(b, sequenceField, protowire.VarintType)
	c.events = protowire.AppendVarint(b, sequence)
	c.last = number
}

// batch is what is copied in one transaction.
type batch struct {
	chunks []*chunk          // in the order of the stream
	open   map[string]*chunk // the last one of each session, by subject
	event  runv1.Event       // for decoding
	events int
	read   int // messages, events or not
	size   int
	oldest time.Time // when the first message was stored
	last   uint64    // the sequence of the last message
}

func newBatch() *batch { return &batch{open: map[string]*chunk{}} }

func (b *batch) full() bool { return b.read >= maxBatch || b.size >= maxBatchBytes }

// add adds the next message of the stream. It returns an error and skips the message if it is
// not an event; readers skip it too.
func (b *batch) add(m *bus.Stored) error {
	if b.read == 0 {
		b.oldest = m.Time
	}
	b.read++
	b.last = m.Seq
	if err := bus.DecodeInto(&m.Message, &b.event); err != nil {
		return err
	}
	e := &b.event
	if e.GetRunOrdinal() < 1 || e.GetEpoch() < 0 || e.GetNumber() < 0 {
		return fmt.Errorf("number %d, run ordinal %d or epoch %d is out of range", e.GetNumber(), e.GetRunOrdinal(), e.GetEpoch())
	}
	c := b.open[m.Subject]
	if c == nil || !c.follows(e, len(m.Data)) {
		next := &chunk{run: e.GetRunOrdinal(), epoch: e.GetEpoch(), first: e.GetNumber()}
		if c != nil {
			next.workspace, next.session = c.workspace, c.session
		} else {
			var ok bool
			if next.workspace, next.session, ok = subject.SessionOf(m.Subject); !ok {
				return fmt.Errorf("%s is not the subject of a session", m.Subject)
			}
		}
		c = next
		b.open[m.Subject] = c
		b.chunks = append(b.chunks, c)
	}
	c.add(m.Seq, e.GetNumber(), m.Data)
	c.ends = isEnd(e)
	b.events++
	b.size += len(m.Data)
	return nil
}

func isEnd(e *runv1.Event) bool {
	switch e.GetBody().(type) {
	case *runv1.Event_Done, *runv1.Event_Error, *runv1.Event_BranchSwitched:
		return true
	}
	return false
}
