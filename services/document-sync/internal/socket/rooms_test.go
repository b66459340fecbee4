package socket_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"sync"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/yjs"
	"signalbox.dev/services/document-sync/internal/room"
	"signalbox.dev/services/document-sync/internal/socket"
	"signalbox.dev/services/document-sync/internal/store"
)

// rooms is a minimal Rooms in memory.
type rooms struct {
	mu   sync.Mutex // guards the rest, and all rooms
	docs map[store.Ref]*memory
	// stored, if set, is closed before updates are accepted.
	stored chan struct{}
	// refuse, if set, is contained in updates that are refused.
	refuse string
}

type memory struct {
	doc     *yjs.Doc
	seats   map[*seat]bool
	aware   map[uint64]presence
	updates int
}

type presence struct {
	clock uint64
	state string
	owner *seat
}

type seat struct {
	all  *rooms
	in   *memory
	peer room.Peer
}

func newRooms() *rooms { return &rooms{docs: map[store.Ref]*memory{}} }

// open creates a document.
func (r *rooms) open(ws id.Workspace) store.Ref {
	r.mu.Lock()
	defer r.mu.Unlock()
	ref := store.Ref{Workspace: ws, Document: id.New[id.Document]()}
	r.docs[ref] = &memory{doc: yjs.New(yjs.Options{}), seats: map[*seat]bool{}, aware: map[uint64]presence{}}
	return ref
}

// remove deletes an open document.
func (r *rooms) remove(ref store.Ref) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for s := range r.docs[ref].seats {
		s.peer.Close(room.CloseGone, "The document was deleted.")
	}
	delete(r.docs, ref)
}

// text returns the document's root text t.
func (r *rooms) text(ref store.Ref) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.docs[ref].doc.Text("t").String()
}

// updates returns the number of updates received for the document.
func (r *rooms) updates(ref store.Ref) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.docs[ref].updates
}

// state returns the whole document.
func (r *rooms) state(ref store.Ref) []byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.docs[ref].doc.EncodeStateAsUpdate(nil)
}

func (r *rooms) seats(ref store.Ref) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	if m := r.docs[ref]; m != nil {
		return len(m.seats)
	}
	return 0
}

// broadcast sends to all in a document.
func (r *rooms) broadcast(ref store.Ref, m *room.Message) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.docs[ref].send(m, nil)
}

func (m *memory) send(msg *room.Message, but *seat) {
	for s := range m.seats {
		if s != but {
			s.peer.Send(msg)
		}
	}
}

func (r *rooms) Join(_ context.Context, ref store.Ref, actor identity.Actor, p room.Peer) (socket.Seat, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.docs[ref]
	if m == nil {
		return nil, fault.New(fault.NotFound, "There is no document %s.", ref.Document)
	}
	if actor.Role < identity.Viewer {
		return nil, fault.New(fault.Forbidden, "You are no member of this workspace.")
	}
	s := &seat{all: r, in: m, peer: p}
	m.seats[s] = true
	p.Send(&room.Message{Kind: room.KindStep1, Payload: m.doc.StateVector().Encode()})
	if len(m.aware) > 0 {
		p.Send(m.awareness())
	}
	return s, nil
}

func (s *seat) Sync(vector []byte) error {
	s.all.mu.Lock()
	defer s.all.mu.Unlock()
	sv, err := yjs.DecodeStateVector(vector)
	if err != nil {
		return err
	}
	s.peer.Send(&room.Message{Kind: room.KindStep2, Payload: s.in.doc.EncodeStateAsUpdate(sv)})
	return nil
}

func (s *seat) Update(ctx context.Context, update []byte) error {
	if s.all.stored != nil {
		select {
		case <-s.all.stored:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	s.all.mu.Lock()
	defer s.all.mu.Unlock()
	if s.all.refuse != "" && bytes.Contains(update, []byte(s.all.refuse)) {
		s.peer.Close(room.CloseRefused, "The document is full.")
		return nil
	}
	if err := s.in.doc.ApplyUpdate(update, nil); err != nil {
		return err
	}
	s.in.updates++
	s.in.send(&room.Message{Kind: room.KindUpdate, Payload: bytes.Clone(update)}, s)
	s.peer.Send(&room.Message{Kind: room.KindStored})
	return nil
}

func (s *seat) Awareness(update []byte) error {
	s.all.mu.Lock()
	defer s.all.mu.Unlock()
	if err := s.in.learn(update, s); err != nil {
		return err
	}
	s.in.send(&room.Message{Kind: room.KindAwareness, Payload: bytes.Clone(update)}, s)
	return nil
}

func (s *seat) QueryAwareness() {
	s.all.mu.Lock()
	defer s.all.mu.Unlock()
	s.peer.Send(s.in.awareness())
}

func (s *seat) Leave() {
	s.all.mu.Lock()
	defer s.all.mu.Unlock()
	if !s.in.seats[s] {
		return
	}
	delete(s.in.seats, s)
	var gone []uint64
	for client, p := range s.in.aware {
		if p.owner == s {
			s.in.aware[client] = presence{clock: p.clock + 1, state: "null"}
			gone = append(gone, client)
		}
	}
	if gone != nil {
		s.in.send(&room.Message{Kind: room.KindAwareness, Payload: s.in.encode(gone)}, nil)
	}
}

func (m *memory) awareness() *room.Message {
	var all []uint64
	for client := range m.aware {
		all = append(all, client)
	}
	slices.Sort(all)
	return &room.Message{Kind: room.KindAwareness, Payload: m.encode(all)}
}

func (m *memory) encode(clients []uint64) []byte {
	b := binary.AppendUvarint(nil, uint64(len(clients)))
	for _, client := range clients {
		p := m.aware[client]
		b = binary.AppendUvarint(binary.AppendUvarint(b, client), p.clock)
		b = append(binary.AppendUvarint(b, uint64(len(p.state))), p.state...)
	}
	return b
}

func (m *memory) learn(b []byte, from *seat) error {
	next := func() uint64 {
		v, n := binary.Uvarint(b)
		b = b[max(n, 0):]
		return v
	}
	for range next() {
		client, clock, size := next(), next(), next()
		if size > uint64(len(b)) {
			return fmt.Errorf("awareness: %w", yjs.ErrMalformed)
		}
		if old, ok := m.aware[client]; !ok || clock > old.clock {
			m.aware[client] = presence{clock, string(b[:size]), from}
		}
		b = b[size:]
	}
	return nil
}
