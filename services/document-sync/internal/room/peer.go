package room

import "sync"

// Peer is a connection in a room. Its methods return at once: a slow connection is dropped by
// its own limit. They do not call back into the room.
type Peer interface {
	// Send queues a message, whose payload is shared and must not be changed.
	Send(m *Message)
	// Close ends the connection with a WebSocket close code and a reason for people.
	Close(code int, reason string)
	// Share returns the rate limit of the connection, for all its documents.
	Share() *Share
}

// Kind is the kind of a message.
type Kind uint8

// The kinds of messages that a room sends.
const (
	// KindStep1 asks for what the server lacks; the payload is its state vector.
	KindStep1 Kind = iota + 1
	// KindStep2 answers Seat.Sync; the payload is an update, v1.
	KindStep2
	// KindUpdate is a committed update, v1.
	KindUpdate
	// KindAwareness is the awareness of some clients in the encoding of y-protocols.
	KindAwareness
	// KindStored confirms that an update of the peer is committed, one per update, in
	// order, without a payload.
	KindStored
)

// Message is sent to any number of peers and encoded once per envelope.
type Message struct {
	Kind    Kind
	Payload []byte

	mu      sync.Mutex // guards encoded
	encoded [Envelopes]any
}

// Envelopes is the number of encodings of a message.
const Envelopes = 2

// Encoded returns the message encoded for an envelope, a number below Envelopes. encode is
// called once.
func (m *Message) Encoded(envelope int, encode func(*Message) any) any {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.encoded[envelope] == nil {
		m.encoded[envelope] = encode(m)
	}
	return m.encoded[envelope]
}

// The close codes of a connection, from RFC 6455, section 7.4, and from its range for
// applications. After 4400 to 4499 an unchanged request is futile, and y-websocket does not
// reconnect.
const (
	CloseRestart   = 1012 // the instance shuts down: reconnect
	CloseBusy      = 1013 // too slow, or too many: try again later
	CloseMalformed = 1007
	CloseTooBig    = 1009
	CloseToken     = 4401 // the token is invalid or has expired
	CloseForbidden = 4403 // not a member
	CloseGone      = 4404 // the document does not exist or was deleted
	CloseRefused   = 4413 // the document cannot accept the update: it is full, or the update too large
)
