package socket

import (
	"strings"
	"sync/atomic"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/services/document-sync/internal/room"
	"signalbox.dev/services/document-sync/internal/store"
	"signalbox.dev/services/document-sync/internal/yproto"
)

// hocuspocus is the session of many documents on one connection.
type hocuspocus struct {
	c    *conn
	docs map[string]*member // by the name as written by the client
}

// member is a document of a session, and the peer in its room.
type member struct {
	c      *conn
	name   string // as written by the client
	shared bool   // name is the canonical one: frames can be shared
	seat   Seat
	asked  bool // the client's first step 1 has arrived

	authPending atomic.Bool                  // Authenticated is still to be sent
	gone        atomic.Bool                  // the room has closed it
	step1       atomic.Pointer[room.Message] // the room's first step 1
}

func (s *hocuspocus) open() error { return nil }

func (s *hocuspocus) leave() {
	for _, d := range s.docs {
		d.seat.Leave()
	}
	s.docs = nil
}

func (s *hocuspocus) handle(msg []byte) error {
	m, err := yproto.DecodeHocuspocus(msg)
	if err != nil {
		return err
	}
	if m.Kind == yproto.Ping {
		s.c.enqueue(frame(1, yproto.AppendPong))
		return nil
	}
	d := s.docs[string(m.Document)]
	if d != nil && (d.gone.Load() || m.Kind == yproto.Close) {
		d.seat.Leave()
		delete(s.docs, d.name)
		d = nil
	}
	if d == nil {
		if m.Kind == yproto.Token {
			return s.join(string(m.Document))
		}
		return nil // not joined: the content will come with a step 2
	}
	return s.dispatch(d, m)
}

// dispatch passes a message to a joined document.
func (s *hocuspocus) dispatch(d *member, m yproto.Message) error {
	switch m.Kind {
	case yproto.Step1:
		if err := s.c.admit(stepCost); err != nil {
			return err
		}
		if first := d.step1.Load(); d.asked && !m.Reply && first != nil {
			d.deliver(first)
		}
		d.asked = true
		return d.handleError(d.seat.Sync(m.Payload))
	case yproto.Step2, yproto.Update:
		if s.c.actor.Role < identity.Editor {
			return s.view(d, m)
		}
		return d.handleError(d.seat.Update(&s.c.life, m.Payload))
	case yproto.Awareness:
		return d.handleError(d.seat.Awareness(m.Payload))
	case yproto.QueryAwareness:
		if err := s.c.admit(0); err != nil {
			return err
		}
		d.seat.QueryAwareness()
	case yproto.BroadcastStateless:
		d.Close(room.CloseForbidden, "Only servers send this message.")
	}
	return nil // repeated tokens, stateless messages, and messages of later versions
}

// view handles a viewer's change. Clients without changes send a step 2 too: one without
// anything new counts as stored.
func (s *hocuspocus) view(d *member, m yproto.Message) error {
	err := error(nil)
	refused := m.Kind == yproto.Update || yproto.HasStructs(m.Payload)
	if !refused {
		err = d.seat.Update(&s.c.life, m.Payload)
		refused = fault.KindOf(err) == fault.Forbidden
	}
	if refused {
		d.sendOwn(func(b []byte) []byte { return yproto.AppendSyncStatus(b, false) })
		return nil
	}
	return d.handleError(err)
}

// join admits the client to a document, or tells it why not.
func (s *hocuspocus) join(name string) error {
	if err := s.c.admit(joinCost); err != nil {
		return err
	}
	plain, _, _ := strings.Cut(name, "\x00")
	doc, err := id.Parse[id.Document](plain)
	if err != nil {
		s.c.deny(name, "There is no such document.")
		return nil
	}
	if len(s.docs) >= s.c.h.limits.Documents {
		s.removeClosed()
	}
	if len(s.docs) >= s.c.h.limits.Documents {
		s.c.deny(name, "This connection has too many documents: close some, or use another connection.")
		return nil
	}
	d := &member{c: s.c, name: name, shared: name == doc.String()}
	d.authPending.Store(true)
	if d.seat, err = s.c.join(store.Ref{Workspace: s.c.actor.Workspace, Document: doc}, d); err != nil {
		// Temporary errors end the connection, since providers then retry by themselves. A
		// document that cannot be loaded does not affect the others.
		why := closingOf(err)
		if why.again || why.label == labelLost {
			return err
		}
		s.c.logFault(why, err)
		s.c.deny(name, why.reason)
		return nil
	}
	if s.docs == nil {
		s.docs = map[string]*member{}
	}
	s.docs[name] = d
	d.sendOwn(nil)
	return nil
}

// removeClosed leaves documents that their rooms have closed.
func (s *hocuspocus) removeClosed() {
	for name, d := range s.docs {
		if d.gone.Load() {
			d.seat.Leave()
			delete(s.docs, name)
		}
	}
}

// ofDocument reports whether a closing concerns only one document.
func (c closing) ofDocument() bool {
	return c.code == room.CloseForbidden || c.code == room.CloseGone || c.code == room.CloseRefused
}

// handleError turns an error that concerns only the document into its closing.
func (d *member) handleError(err error) error {
	if err == nil || d.gone.Load() { // the room was first
		return nil
	}
	if why := closingOf(err); why.ofDocument() {
		d.Close(why.code, why.reason)
		return nil
	}
	return err
}

// deny refuses a document.
func (c *conn) deny(name, reason string) {
	c.enqueue(frame(len(name)+len(reason)+8, func(b []byte) []byte {
		return yproto.AppendHocuspocusDenied(yproto.AppendDocument(b, name), reason)
	}))
}

// Share implements room.Peer.
func (d *member) Share() *room.Share { return &d.c.share }

// Send implements room.Peer.
func (d *member) Send(m *room.Message) {
	if d.gone.Load() {
		return
	}
	if m.Kind == room.KindStep1 {
		d.step1.CompareAndSwap(nil, m)
	}
	d.sendAuthenticated()
	d.deliver(m)
}

func (d *member) deliver(m *room.Message) {
	if d.shared {
		d.c.enqueue(m.Encoded(envelopeHocuspocus, d.frame).([]byte))
	} else {
		d.c.enqueue(d.frame(m).([]byte))
	}
}

func (d *member) frame(m *room.Message) any {
	return frame(len(d.name)+len(m.Payload)+8, func(b []byte) []byte {
		return appendMessage(yproto.AppendDocument(b, d.name), m)
	})
}

// sendOwn sends a message to this client only, after Authenticated. A nil fill sends only that.
func (d *member) sendOwn(fill func([]byte) []byte) {
	d.sendAuthenticated()
	if fill != nil {
		d.c.enqueue(frame(len(d.name)+32, func(b []byte) []byte { return fill(yproto.AppendDocument(b, d.name)) }))
	}
}

// sendAuthenticated sends Authenticated before the first message of a joined document.
func (d *member) sendAuthenticated() {
	if !d.authPending.Load() || !d.authPending.CompareAndSwap(true, false) {
		return
	}
	scope := yproto.ScopeReadWrite
	if d.c.actor.Role < identity.Editor {
		scope = yproto.ScopeReadOnly
	}
	d.sendOwn(func(b []byte) []byte { return yproto.AppendAuthenticated(b, scope) })
}

// Close implements room.Peer. A closing that concerns only the document leaves the others open;
// the stream's goroutine leaves the seat.
func (d *member) Close(code int, reason string) {
	why := closing{code: code, reason: reason}
	if !why.ofDocument() {
		d.c.end(why)
		return
	}
	if d.gone.Swap(true) {
		return
	}
	d.c.deny(d.name, reason)
	d.c.enqueue(frame(len(d.name)+len(reason)+8, func(b []byte) []byte {
		return yproto.AppendClose(yproto.AppendDocument(b, d.name), reason)
	}))
}
