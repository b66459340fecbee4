package socket

import (
	"context"

	"signalbox.dev/pkg/identity"
	"signalbox.dev/services/document-sync/internal/room"
	"signalbox.dev/services/document-sync/internal/store"
	"signalbox.dev/services/document-sync/internal/yproto"
)

// The envelopes, under which room.Message caches its encodings.
const (
	envelopePlain = iota
	envelopeHocuspocus
)

const readOnlyReason = "You may read this document but not change it: an owner of the workspace can make you an editor."

// plain is the session of y-protocols, for one document. It is the peer in its room.
type plain struct {
	c      *conn
	ref    store.Ref
	seat   Seat // nil before open
	denied bool // the viewer was told that its updates are refused
}

func (p *plain) open() (err error) {
	p.seat, err = p.c.join(p.ref, p)
	return err
}

// join joins a document for a session, within joinWait.
func (c *conn) join(ref store.Ref, p room.Peer) (Seat, error) {
	ctx, cancel := context.WithTimeout(&c.life, joinWait)
	defer cancel()
	return c.h.rooms.Join(ctx, ref, c.actor, p)
}

func (p *plain) leave() {
	if p.seat != nil {
		p.seat.Leave()
	}
}

func (p *plain) handle(msg []byte) error {
	m, err := yproto.Decode(msg)
	if err != nil {
		return err
	}
	switch m.Kind {
	case yproto.Step1:
		if err := p.c.admit(stepCost); err != nil {
			return err
		}
		return p.seat.Sync(m.Payload)
	case yproto.Step2, yproto.Update:
		if p.c.actor.Role < identity.Editor {
			p.refuse(m)
			return nil
		}
		return p.seat.Update(&p.c.life, m.Payload)
	case yproto.Awareness:
		return p.seat.Awareness(m.Payload)
	case yproto.QueryAwareness:
		if err := p.c.admit(0); err != nil {
			return err
		}
		p.seat.QueryAwareness()
	}
	return nil // messages of later versions
}

// refuse tells a viewer once that it cannot write. A step 2 without structs is ignored: clients
// without changes send it too.
func (p *plain) refuse(m yproto.Message) {
	if p.denied || m.Kind == yproto.Step2 && !yproto.HasStructs(m.Payload) {
		return
	}
	p.denied = true
	p.c.enqueue(frame(160, func(b []byte) []byte { return yproto.AppendDenied(b, readOnlyReason) }))
}

// Send implements room.Peer.
func (p *plain) Send(m *room.Message) {
	if m.Kind != room.KindStored { // y-protocols has no such message
		p.c.enqueue(m.Encoded(envelopePlain, plainFrame).([]byte))
	}
}

// Share implements room.Peer.
func (p *plain) Share() *room.Share { return &p.c.share }

// Close implements room.Peer.
func (p *plain) Close(code int, reason string) { p.c.end(closing{code: code, reason: reason}) }

func plainFrame(m *room.Message) any {
	return frame(len(m.Payload)+8, func(b []byte) []byte { return appendMessage(b, m) })
}

func appendMessage(b []byte, m *room.Message) []byte {
	switch m.Kind {
	case room.KindStep1:
		return yproto.AppendStep1(b, m.Payload)
	case room.KindStep2:
		return yproto.AppendStep2(b, m.Payload)
	case room.KindUpdate:
		return yproto.AppendUpdate(b, m.Payload)
	case room.KindAwareness:
		return yproto.AppendAwareness(b, m.Payload)
	case room.KindStored:
		return yproto.AppendSyncStatus(b, true)
	}
	panic("socket: a room sent a message of no kind")
}
