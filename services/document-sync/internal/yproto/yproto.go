// Package yproto encodes and decodes the messages between editors and a server about Yjs
// documents. It does not interpret updates, state vectors or awareness updates.
//
// The same messages have two envelopes:
//
//   - y-protocols 1, spoken by y-websocket: a connection is for one document, and a message
//     begins with its type.
//   - Hocuspocus, in the major versions 2, 3 and 4 of the provider (compared with 2.15, 3.4
//     and 4.8): a connection carries many documents, and a message begins with the name of
//     its document. Version 4 may append a NUL and a session to the name, so that two
//     editors of a page share a connection; answers repeat the name as received. It also
//     sends its version after the token, and one-byte pings without a name.
//
// Numbers are varuints, seven bits per byte, least significant first. Bytes and text (UTF-8)
// are preceded by their length. After the type follows:
//
//	sync            0   a number (step 1: 0, step 2: 1, update: 2), then bytes
//	awareness       1   bytes
//	auth            2   y-protocols: 0 and the reason of a refusal
//	                    Hocuspocus: 0 and a token (a server that requests one sends
//	                    only the 0), 1 and a reason, 2 and a scope
//	query awareness 3   nothing
//
// and in Hocuspocus only:
//
//	sync reply           4   as sync; its step 1 must not be answered with a step 1
//	stateless            5   text
//	broadcast stateless  6   text, between servers only
//	close                7   from a server the reason, from a client nothing
//	sync status          8   1 when an update was stored, 0 when it was refused
//	ping, pong           9, 10   nothing
//
// Bytes after a complete message are ignored: later versions append fields.
package yproto

import (
	"encoding/binary"
	"errors"
	"fmt"
	"unicode/utf8"
)

// Kind is the kind of a message.
type Kind uint8

// The kinds of messages. Unknown types are ignored, since peers may have other versions.
const (
	Unknown            Kind = iota
	Step1                   // Payload is a state vector: asks for what its owner lacks
	Step2                   // Payload is an update: the answer
	Update                  // Payload is an update
	Awareness               // Payload is an awareness update
	QueryAwareness          // asks for everybody's awareness
	Token                   // Payload is a token, Version the client's version or nil; a nil Payload requests a token
	Denied                  // Payload is a reason for people
	Authenticated           // Payload is a scope
	Stateless               // Payload is an application's message
	BroadcastStateless      // the same, between servers
	Close                   // Payload is a reason, or nil
	SyncStatus              // Stored is the outcome of an update
	Ping
	Pong
)

// The scopes that a server grants to a Hocuspocus client.
const (
	ScopeReadWrite = "read-write"
	ScopeReadOnly  = "readonly"
)

// Message is a decoded message. Its slices refer to the decoded bytes.
type Message struct {
	// Document is the name as written by the client, in Hocuspocus only, and not in
	// one-byte pings.
	Document []byte
	Kind     Kind
	// Reply is set for a sync message that must not be answered with a step 1.
	Reply   bool
	Stored  bool
	Payload []byte
	Version []byte
}

// ErrMalformed is returned, wrapped, for bytes that are not a message.
var ErrMalformed = errors.New("malformed message")

// MaxDocument is the maximum size of a document's name in bytes.
const MaxDocument = 256

// The types in the encoding.
const (
	typeSync = iota
	typeAwareness
	typeAuth
	typeQueryAwareness
	typeSyncReply
	typeStateless
	typeBroadcastStateless
	typeClose
	typeSyncStatus
	typePing
	typePong
)

// Decode decodes a message of y-protocols.
func Decode(b []byte) (Message, error) {
	r := reader{b}
	typ, err := r.uint()
	if err != nil {
		return Message{}, err
	}
	var m Message
	switch typ {
	case typeSync:
		err = m.readSync(&r)
	case typeAwareness:
		err = m.readBytes(&r, Awareness)
	case typeAuth:
		var sub uint64
		if sub, err = r.uint(); err == nil && sub == 0 {
			err = m.readText(&r, Denied)
		}
	case typeQueryAwareness:
		m.Kind = QueryAwareness
	}
	return m.orError(err)
}

// DecodeHocuspocus decodes a message of Hocuspocus.
func DecodeHocuspocus(b []byte) (Message, error) {
	if len(b) == 1 && b[0] == typePing {
		return Message{Kind: Ping}, nil
	}
	if len(b) == 1 && b[0] == typePong {
		return Message{Kind: Pong}, nil
	}
	r := reader{b}
	name, err := r.text()
	if err != nil {
		return Message{}, fmt.Errorf("name of the document: %w", err)
	}
	if len(name) > MaxDocument {
		return Message{}, fmt.Errorf("%w: the name of the document has %d bytes, at most %d are allowed", ErrMalformed, len(name), MaxDocument)
	}
	typ, err := r.uint()
	if err != nil {
		return Message{}, err
	}
	m := Message{Document: name}
	switch typ {
	case typeSync, typeSyncReply:
		m.Reply = typ == typeSyncReply
		err = m.readSync(&r)
	case typeAwareness:
		err = m.readBytes(&r, Awareness)
	case typeAuth:
		err = m.readAuth(&r)
	case typeQueryAwareness:
		m.Kind = QueryAwareness
	case typeStateless:
		err = m.readText(&r, Stateless)
	case typeBroadcastStateless:
		err = m.readText(&r, BroadcastStateless)
	case typeClose:
		m.Kind = Close
		if len(r.b) > 0 {
			err = m.readText(&r, Close)
		}
	case typeSyncStatus:
		var status uint64
		status, err = r.uint()
		m.Kind, m.Stored = SyncStatus, status == 1
	case typePing:
		m.Kind = Ping
	case typePong:
		m.Kind = Pong
	}
	return m.orError(err)
}

func (m *Message) orError(err error) (Message, error) {
	if err != nil {
		return Message{}, err
	}
	return *m, nil
}

func (m *Message) readSync(r *reader) error {
	step, err := r.uint()
	if err != nil {
		return err
	}
	if step > 2 {
		return fmt.Errorf("%w: there is no sync message %d", ErrMalformed, step)
	}
	return m.readBytes(r, Step1+Kind(step))
}

func (m *Message) readAuth(r *reader) error {
	sub, err := r.uint()
	if err != nil {
		return err
	}
	switch sub {
	case 0:
		if m.Kind = Token; len(r.b) == 0 {
			return nil
		}
		if err := m.readText(r, Token); err != nil {
			return err
		}
		if len(r.b) > 0 {
			m.Version, err = r.text()
		}
		return err
	case 1:
		return m.readText(r, Denied)
	case 2:
		return m.readText(r, Authenticated)
	}
	return fmt.Errorf("%w: there is no auth message %d", ErrMalformed, sub)
}

func (m *Message) readBytes(r *reader, k Kind) (err error) {
	m.Kind = k
	m.Payload, err = r.bytes()
	return err
}

func (m *Message) readText(r *reader, k Kind) (err error) {
	m.Kind = k
	m.Payload, err = r.text()
	return err
}

// HasStructs reports whether a v1 update has anything besides deletions. It inspects only the
// first number, and treats malformed updates as having structs.
func HasStructs(update []byte) bool {
	r := reader{update}
	clients, err := r.uint()
	return err != nil || clients > 0
}

// reader consumes bytes from the front.
type reader struct{ b []byte }

// maxUint is the largest integer that JavaScript represents exactly.
const maxUint = 1<<53 - 1

func (r *reader) uint() (uint64, error) {
	v, n := binary.Uvarint(r.b)
	switch {
	case n == 0:
		return 0, fmt.Errorf("%w: it ends within a number", ErrMalformed)
	case n < 0 || n > 8 || v > maxUint:
		return 0, fmt.Errorf("%w: a number is too large", ErrMalformed)
	}
	r.b = r.b[n:]
	return v, nil
}

func (r *reader) bytes() ([]byte, error) {
	n, err := r.uint()
	if err != nil {
		return nil, err
	}
	if n > uint64(len(r.b)) {
		return nil, fmt.Errorf("%w: %d bytes are announced, %d are left", ErrMalformed, n, len(r.b))
	}
	p := r.b[:n:n]
	r.b = r.b[n:]
	return p, nil
}

func (r *reader) text() ([]byte, error) {
	p, err := r.bytes()
	if err != nil {
		return nil, err
	}
	if !utf8.Valid(p) {
		return nil, fmt.Errorf("%w: text that is not UTF-8", ErrMalformed)
	}
	return p, nil
}
