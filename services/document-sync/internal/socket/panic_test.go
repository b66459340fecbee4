package socket_test

import (
	"context"
	"testing"

	"signalbox.dev/pkg/identity"
	"signalbox.dev/services/document-sync/internal/room"
	"signalbox.dev/services/document-sync/internal/socket"
	"signalbox.dev/services/document-sync/internal/store"
	"signalbox.dev/services/document-sync/internal/yproto"
)

// buggy is a Rooms with a document whose seats panic.
type buggy struct {
	*rooms
	bad store.Ref
}

func (r *buggy) Join(ctx context.Context, ref store.Ref, actor identity.Actor, p room.Peer) (socket.Seat, error) {
	s, err := r.rooms.Join(ctx, ref, actor, p)
	if ref == r.bad && err == nil {
		return badSeat{s}, nil
	}
	return s, err
}

type badSeat struct{ socket.Seat }

func (badSeat) Update(context.Context, []byte) error { panic("an update that cannot be applied") }

// TestPanicCostsOneConnection checks that a panic closes the connection whose message caused it,
// but not the mux.
func TestPanicCostsOneConnection(t *testing.T) {
	t.Parallel()
	all := &buggy{rooms: newRooms()}
	w := prepareRooms(t, socket.Limits{}, all)
	w.rooms = all.rooms
	all.bad = all.open(w.workspace)
	good := all.open(w.workspace)
	w.listen()
	other := w.dial(t, nil, path(good.Document.String(), ""))
	other.until(yproto.Step1)
	r := w.dial(t, nil, path(all.bad.Document.String(), ""))
	r.until(yproto.Step1)
	r.send(yproto.AppendUpdate(nil, []byte{0, 0}))
	if code, reason := r.end(); code != room.CloseBusy {
		t.Errorf("end = %d %q, want %d", code, reason, room.CloseBusy)
	}
	other.send(queryAwareness)
	other.until(yproto.Awareness)
	eventually(t, "only the other connection is left", func() bool { return w.handler.Count() == 1 && w.rooms.seats(all.bad) == 0 })
}
