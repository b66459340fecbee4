// Package yproto writes and reads the messages that editors and a server exchange
// about Yjs documents. It knows bytes and keeps no state: what an update, a state
// vector or an awareness update holds is for other packages.
//
// There are two envelopes around the same messages:
//
//   - That of y-protocols 1, which y-websocket speaks: a connection is about one
//     document, and a message begins with its type.
//   - That of Hocuspocus, as the providers of the major versions 2, 3 and 4 speak it
//     (compared with 2.15, 3.4 and 4.8): a connection carries many documents, and a
//     message begins with the name of the one that it is about. Version 4 may add a
//     NUL and a session to the name, so that two editors of a page share a
//     connection; answers repeat the name as it came. It also tells its own version
//     behind the token, and answers a ping of one byte that has no name.
//
// In both a number is a varuint: seven bits a byte, the low ones first, the high bit
// says that more follow. Bytes and text (UTF-8) stand behind their length. After the
// type comes:
//
//	sync            0   a number (step 1: 0, step 2: 1, update: 2), then bytes
//	awareness       1   bytes
//	auth            2   y-protocols: 0 and the reason of a refusal
//	                    Hocuspocus: 0 and a token (a server that wants one sends
//	                    the 0 alone), 1 and a reason, 2 and a scope
//	query awareness 3   nothing
//
// and with Hocuspocus alone:
//
//	sync reply           4   as sync; a step 1 in it is not to be asked back
//	stateless            5   text
//	broadcast stateless  6   text, between servers only
//	close                7   from a server the reason, from a client nothing
//	sync status          8   1 when an update was stored, 0 when it was refused
//	ping, pong           9, 10   nothing
//
// What stands behind a message that is complete is ignored: later versions add there.
package yproto

import (
	"errors"
	"fmt"
	"unicode/utf8"
)

// Kind says what a message is.
type Kind uint8

// The kinds of messages. Unknown is a type that this package has never heard of;
// peers ignore it, because their versions may differ.
const (
	Unknown            Kind = iota
	Step1                   // Payload is a state vector: send me what I lack
	Step2                   // Payload is an update: the answer
	Update                  // Payload is an update
	Awareness               // Payload is an awareness update
	QueryAwareness          // send me everybody's awareness
	Token                   // Payload is a token, Version the client's version or nil; a server asks with a nil Payload
	Denied                  // Payload is a reason for people
	Authenticated           // Payload is a scope
	Stateless               // Payload is what applications tell each other
	BroadcastStateless      // the same, between servers
	Close                   // Payload is a reason, or nil
	SyncStatus              // Stored says how an update fared
	Ping
	Pong
)

// The scopes that a server grants to a Hocuspocus client.
const (
	ScopeReadWrite = "read-write"
	ScopeReadOnly  = "readonly"
)

// Message is what was read. Its slices are parts of what was decoded.
type Message struct {
	// Document is the name as the client wrote it; only Hocuspocus has one, and its
	// pings of one byte have none.
	Document []byte
	Kind     Kind
	// Reply is set for a sync message that must not be answered with a step 1.
	Reply   bool
	Stored  bool
	Payload []byte
	Version []byte
}

// ErrMalformed is returned, wrapped, for bytes that are no message.
var ErrMalformed = errors.New("malformed message")

// MaxDocument bounds the name of a document, in bytes.
const MaxDocument = 256

// The types on the wire.
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

// Decode reads a message of y-protocols.
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

// DecodeHocuspocus reads a message of Hocuspocus.
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

// HasStructs says whether an update in encoding v1 has anything besides deletions. It
// looks no further than it must, and takes what is no update for one that has.
func HasStructs(update []byte) bool {
	r := reader{update}
	clients, err := r.uint()
	return err != nil || clients > 0
}

// reader takes from the front of what is left.
type reader struct{ b []byte }

// maxUint is the largest number that JavaScript counts without gaps.
const maxUint = 1<<53 - 1

func (r *reader) uint() (uint64, error) {
	var v uint64
	for i, c := range r.b {
		if i == 8 {
			break // 56 bits and more to come
		}
		v |= uint64(c&0x7f) << (7 * i)
		if c < 0x80 {
			if v > maxUint {
				break
			}
			r.b = r.b[i+1:]
			return v, nil
		}
	}
	if len(r.b) < 8 {
		return 0, fmt.Errorf("%w: it ends within a number", ErrMalformed)
	}
	return 0, fmt.Errorf("%w: a number is too large", ErrMalformed)
}

func (r *reader) bytes() ([]byte, error) {
	n, err := r.uint()
	if err != nil {
		return nil, err
	}
	if n > uint64(len(r.b)) {
		return nil, fmt.Errorf("%w: %d bytes are announced, %d are there", ErrMalformed, n, len(r.b))
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
