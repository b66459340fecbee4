package room

import "sync"

// Peer is a connection in a room. Its methods return at once: who cannot be written
// to fast enough is dropped by its own bound. They do not call back into the room.
type Peer interface {
	// Send queues a message; its payload is shared and must not be changed.
	Send(m *Message)
	// Close ends the connection with a WebSocket close code and a reason for people.
	Close(code int, reason string)
	// Share is that of the connection, in all documents that it has open.
	Share() *Share
}

// Kind says what a message is.
type Kind uint8

// The kinds of messages that a room sends.
const (
	// KindStep1 asks for what the server lacks; the payload is its state vector.
	KindStep1 Kind = iota + 1
	// KindStep2 answers Seat.Sync; the payload is an update, v1.
	KindStep2
	// KindUpdate is what was committed; the payload is an update, v1.
	KindUpdate
	// KindAwareness has the awareness of some clients, as y-protocols encodes it.
	KindAwareness
	// KindStored tells a peer that one of its updates is committed; there is one for
	// each, in their order, without a payload.
	KindStored
)

// Message goes to any number of peers, and is encoded once for each envelope.
type Message struct {
	Kind    Kind
	Payload []byte

	mu      sync.Mutex // guards what follows
	encoded [Envelopes]any
}

// Envelopes is how many ways there are to encode a message.
const Envelopes = 2

// Encoded returns what encode made of the message for an envelope, which is a number
// below Envelopes; encode is called once.
func (m *Message) Encoded(envelope int, encode func(*Message) any) any {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.encoded[envelope] == nil {
		m.encoded[envelope] = encode(m)
	}
	return m.encoded[envelope]
}

// The close codes of a connection, with RFC 6455, section 7.4, and the range that it
// leaves to applications. From 4400 to 4499 it is of no use to connect again with the
// same, and y-websocket does not.
const (
	CloseRestart   = 1012 // the instance goes away: connect again
	CloseBusy      = 1013 // too slow, or too many: try again later
	CloseMalformed = 1007
	CloseTooBig    = 1009
	CloseToken     = 4401 // the token ran out or is not valid
	CloseForbidden = 4403 // no membership
	CloseGone      = 4404 // no such document, or it was deleted
	CloseRefused   = 4413 // the document does not take an update: it is full, or that is too much
)
