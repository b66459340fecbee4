package bus

import (
	"context"
	"fmt"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.opentelemetry.io/otel/propagation"
	"google.golang.org/protobuf/proto"

	"signalbox.dev/pkg/subject"
)

// SchemaHeader has the full name of the payload's protobuf message.
const SchemaHeader = "Signalbox-Schema"

// Message is a received message that is not decoded yet.
type Message struct {
	Subject string
	ID      string // the publisher's id; empty for nudges
	Header  nats.Header
	Data    []byte
}

// Schema returns the full name of the payload's protobuf message.
func (m *Message) Schema() string { return m.Header.Get(SchemaHeader) }

func received(m *nats.Msg) Message {
	return Message{Subject: m.Subject, ID: m.Header.Get(jetstream.MsgIDHeader), Header: m.Header, Data: m.Data}
}

// Decode returns the payload as a T. If it has another schema or does not parse, the error
// is Terminal: a retry would not help.
func Decode[T proto.Message](m *Message) (T, error) {
	var zero T
	if any(zero) == nil {
		return zero, Terminal(fmt.Errorf("decode %s: T must be a message, not an interface", m.Subject))
	}
	out, ok := zero.ProtoReflect().Type().New().Interface().(T)
	if !ok {
		return zero, Terminal(fmt.Errorf("decode %s: %T is not a generated message", m.Subject, zero))
	}
	if err := DecodeInto(m, out); err != nil {
		return zero, err
	}
	return out, nil
}

// DecodeInto decodes into a message of the caller, which it resets first.
func DecodeInto(m *Message, into proto.Message) error {
	want := string(into.ProtoReflect().Descriptor().FullName())
	if got := m.Schema(); got != want {
		return Terminal(fmt.Errorf("%w on %s: want %s, got %q", ErrSchema, m.Subject, want, clip(got)))
	}
	if err := proto.Unmarshal(m.Data, into); err != nil {
		return Terminal(fmt.Errorf("decode %s on %s: %w", want, m.Subject, err))
	}
	return nil
}

// encode returns a message with payload, schema and id.
func encode(subj, id string, m proto.Message) (*nats.Msg, error) {
	data, err := proto.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("encode message for %s: %w", subj, err)
	}
	if len(data) > subject.MaxPayload {
		return nil, fmt.Errorf("%w: %d bytes for %s, the limit is %d: store the body and send a reference",
			ErrTooLarge, len(data), subj, subject.MaxPayload)
	}
	h := nats.Header{SchemaHeader: []string{string(m.ProtoReflect().Descriptor().FullName())}}
	if id != "" {
		h[jetstream.MsgIDHeader] = []string{id}
	}
	return &nats.Msg{Subject: subj, Header: h, Data: data}, nil
}

func (b *Bus) inject(ctx context.Context, m *nats.Msg) {
	b.propagate.Inject(ctx, propagation.HeaderCarrier(m.Header))
}

func (b *Bus) extract(ctx context.Context, h nats.Header) context.Context {
	return b.propagate.Extract(ctx, propagation.HeaderCarrier(h))
}

func clip(s string) string {
	if len(s) > 100 {
		return s[:100] + "…"
	}
	return s
}
