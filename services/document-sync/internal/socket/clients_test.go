package socket_test

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"signalbox.dev/services/document-sync/internal/room"
	"signalbox.dev/services/document-sync/internal/socket"
)

// TestConverge checks that clients that type at once end up with the same bytes as the server.
func TestConverge(t *testing.T) {
	t.Parallel()
	everyKind(t, func(t *testing.T, kind func(int) string) {
		w, b := newWorld(t, socket.Limits{}), newBrowser(t)
		ref := w.rooms.open(w.workspace)
		name := ref.Document.String()
		ids := []string{"a", "b", "c"}
		for i, id := range ids {
			b.open(w, id, kind(i), name, nil)
		}
		for _, id := range ids {
			b.tell(id, "type", args{"text": id, "count": 40})
		}
		for _, id := range ids {
			b.tell(id, "until", args{"length": 120, "synced": true, "settled": true})
		}
		// A late client gets everything, and can edit.
		b.open(w, "late", kind(3), name, nil)
		b.tell("late", "until", args{"length": 120, "synced": true, "settled": true})
		b.tell("late", "insert", args{"at": 0, "text": "late "})
		for _, id := range append(ids, "late") {
			s := b.tell(id, "until", args{"length": 125, "settled": true})
			eventually(t, "the server has all", func() bool { return len(w.rooms.text(ref)) == 125 })
			if !bytes.Equal(s.Update, w.rooms.state(ref)) {
				t.Errorf("%s has %q, the server has %q", id, s.Text, w.rooms.text(ref))
			}
		}
	})
}

// TestOffline checks that edits made while disconnected are sent after the reconnect.
func TestOffline(t *testing.T) {
	t.Parallel()
	everyKind(t, func(t *testing.T, kind func(int) string) {
		w, b := newWorld(t, socket.Limits{}), newBrowser(t)
		ref := w.rooms.open(w.workspace)
		name := ref.Document.String()
		b.open(w, "a", kind(1), name, nil)
		b.open(w, "b", kind(2), name, nil)
		b.tell("a", "insert", args{"text": "base "})
		b.tell("b", "until", args{"text": "base ", "settled": true})
		b.tell("a", "offline", nil)
		b.tell("a", "until", args{"synced": false})
		b.tell("a", "insert", args{"at": 5, "text": "offline "})
		b.tell("b", "insert", args{"at": 0, "text": "online "})
		b.tell("a", "online", nil)
		for _, id := range []string{"a", "b"} {
			b.tell(id, "until", args{"text": "online base offline ", "synced": true, "settled": true})
		}
		// The same after a broken connection.
		b.tell("b", "cut", nil)
		b.tell("b", "insert", args{"at": 0, "text": "cut "})
		for _, id := range []string{"a", "b"} {
			b.tell(id, "until", args{"text": "cut online base offline ", "synced": true, "settled": true})
		}
	})
}

// TestAwareness checks that clients disappear for everybody, however they leave.
func TestAwareness(t *testing.T) {
	t.Parallel()
	everyKind(t, func(t *testing.T, kind func(int) string) {
		w, b := newWorld(t, socket.Limits{}), newBrowser(t)
		name := w.rooms.open(w.workspace).Document.String()
		for i, id := range []string{"a", "b", "c"} {
			b.open(w, id, kind(i), name, nil)
			b.tell(id, "aware", named(strings.ToUpper(id)))
		}
		for _, id := range []string{"a", "b", "c"} {
			b.tell(id, "until", args{"names": "A,B,C"})
		}
		b.open(w, "d", kind(3), name, args{"params": args{"as": "viewer"}})
		b.tell("d", "aware", named("D"))
		for _, id := range []string{"a", "b", "c", "d"} {
			b.tell(id, "until", args{"names": "A,B,C,D"})
		}
		b.tell("b", "close", nil)
		for _, id := range []string{"a", "c", "d"} {
			b.tell(id, "until", args{"names": "A,C,D"})
		}
		b.tell("c", "cut", nil)
		b.tell("c", "offline", nil)
		for _, id := range []string{"a", "d"} {
			b.tell(id, "until", args{"names": "A,D"})
		}
	})
}

// TestViewer checks that a viewer sees everything and cannot change anything.
func TestViewer(t *testing.T) {
	t.Parallel()
	everyKind(t, func(t *testing.T, kind func(int) string) {
		w, b := newWorld(t, socket.Limits{}), newBrowser(t)
		ref := w.rooms.open(w.workspace)
		name := ref.Document.String()
		b.open(w, "editor", kind(0), name, nil)
		b.tell("editor", "insert", args{"text": "seen"})
		b.open(w, "viewer", kind(1), name, args{"params": args{"as": "viewer"}})
		s := b.tell("viewer", "until", args{"text": "seen", "synced": true, "settled": true})
		if want := "readonly"; kind(1) != "y-websocket" && s.Scope != want {
			t.Errorf("the viewer's scope is %q, want %q", s.Scope, want)
		}
		b.tell("viewer", "insert", args{"text": "never "})
		b.tell("editor", "insert", args{"at": 4, "text": " and heard"})
		s = b.tell("viewer", "until", args{"text": "never seen and heard"})
		if kind(1) != "y-websocket" && s.Unsynced != 1 {
			t.Errorf("the viewer has %d unsynced changes, want the refused one", s.Unsynced)
		}
		// Its offline changes are refused too.
		b.tell("viewer", "offline", nil)
		b.tell("viewer", "until", args{"synced": false})
		b.tell("viewer", "insert", args{"text": "never, "})
		b.tell("viewer", "online", nil)
		b.tell("viewer", "until", args{"synced": true})
		b.tell("editor", "insert", args{"at": 14, "text": "!"})
		b.tell("viewer", "until", args{"text": "never, never seen and heard!"})
		if got, want := w.rooms.text(ref), "seen and heard!"; got != want {
			t.Errorf("content = %q, want %q", got, want)
		}
	})
}

// TestManyDocuments checks that documents on one connection are separate and close separately.
func TestManyDocuments(t *testing.T) {
	t.Parallel()
	for _, kind := range providers {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			w, b := newWorld(t, socket.Limits{}), newBrowser(t)
			var ids []string
			for i := range 20 {
				ref := w.rooms.open(w.workspace)
				id := join("d", i)
				ids = append(ids, id)
				b.open(w, id, kind, ref.Document.String(), args{"socket": "one"})
				b.open(w, id+"'", kind, ref.Document.String(), args{"socket": "two"})
				b.tell(id, "insert", args{"text": id})
			}
			for _, id := range ids {
				b.tell(id+"'", "until", args{"text": id, "synced": true, "settled": true})
				b.tell(id, "until", args{"synced": true, "settled": true})
			}
			if got := w.handler.Count(); got != 2 {
				t.Errorf("%d connections are open, want 2", got)
			}
			for _, id := range ids[1:] {
				b.tell(id, "close", nil)
			}
			eventually(t, "one document is left on the first connection", func() bool {
				n := 0
				for ref := range w.rooms.docs {
					n += w.rooms.seats(ref)
				}
				return n == len(ids)+1
			})
			b.tell(ids[0]+"'", "insert", args{"text": "still "})
			b.tell(ids[0], "until", args{"text": "still d0"})
		})
	}
}

// TestSessions checks that two editors of one document can share a connection.
func TestSessions(t *testing.T) {
	t.Parallel()
	w, b := newWorld(t, socket.Limits{}), newBrowser(t)
	ref := w.rooms.open(w.workspace)
	for _, id := range []string{"a", "b"} {
		b.open(w, id, "hocuspocus4", ref.Document.String(), args{"socket": "one", "session": true})
	}
	b.tell("a", "insert", args{"text": "hello"})
	b.tell("b", "until", args{"text": "hello", "synced": true, "settled": true})
	b.tell("a", "until", args{"settled": true})
	if got := w.rooms.seats(ref); got != 2 || w.handler.Count() != 1 {
		t.Errorf("%d seats on %d connections, want 2 on 1", got, w.handler.Count())
	}
}

// TestDocumentGone checks that a refused or deleted document closes alone, with a reason.
func TestDocumentGone(t *testing.T) {
	t.Parallel()
	for _, kind := range providers {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			w, b := newWorld(t, socket.Limits{}), newBrowser(t)
			stays, goes := w.rooms.open(w.workspace), w.rooms.open(w.workspace)
			b.open(w, "stays", kind, stays.Document.String(), args{"socket": "one"})
			b.open(w, "goes", kind, goes.Document.String(), args{"socket": "one"})
			b.open(w, "never", kind, "6f1e0000-0000-7000-8000-000000000000", args{"socket": "one"})
			b.open(w, "odd", kind, "my page", args{"socket": "one"})
			b.tell("goes", "until", args{"synced": true, "settled": true})
			if s := b.tell("never", "until", args{"told": "denied"}); !strings.Contains(s.denied(), "There is no document 6f1e") {
				t.Errorf("a document that never existed: %+v", s.Told)
			}
			if s := b.tell("odd", "until", args{"told": "denied"}); s.denied() != "There is no such document." {
				t.Errorf("a document with an invalid name: %+v", s.Told)
			}
			w.rooms.remove(goes)
			if s := b.tell("goes", "until", args{"told": "denied"}); s.denied() != "The document was deleted." {
				t.Errorf("a deleted document: %+v", s.Told)
			}
			b.tell("stays", "insert", args{"text": "here"})
			if s := b.tell("stays", "until", args{"settled": true}); len(s.Ends) != 0 {
				t.Errorf("the connection ended: %+v", s.Ends)
			}
		})
	}
}

// TestRefusedUpdate checks that a refused update closes the document for its sender with a reason,
// and is not sent again automatically; other documents on the connection stay open.
func TestRefusedUpdate(t *testing.T) {
	t.Parallel()
	for _, kind := range append([]string{"y-websocket"}, providers...) {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			w, b := newWorld(t, socket.Limits{}), newBrowser(t)
			w.rooms.refuse = "REFUSED"
			ref, beside := w.rooms.open(w.workspace), w.rooms.open(w.workspace)
			b.open(w, "bad", kind, ref.Document.String(), args{"socket": "one"})
			b.open(w, "beside", kind, beside.Document.String(), args{"socket": "one"})
			b.open(w, "good", kind, ref.Document.String(), nil)
			b.tell("bad", "insert", args{"text": "fine"})
			b.tell("good", "until", args{"text": "fine", "settled": true})
			b.tell("beside", "until", args{"synced": true})
			b.tell("bad", "insert", args{"text": "REFUSED"})
			if kind == "y-websocket" {
				b.tell("bad", "until", args{"ended": room.CloseRefused})
			} else if s := b.tell("bad", "until", args{"told": "denied"}); s.denied() != "The document is full." {
				t.Errorf("it received %+v", s.Told)
			}
			b.tell("good", "type", args{"text": "!", "count": 20})
			b.tell("good", "until", args{"settled": true})
			eventually(t, "the server has what came after", func() bool { return len(w.rooms.text(ref)) == len("fine")+20 })
			b.tell("beside", "insert", args{"text": "here"})
			s := b.tell("beside", "until", args{"settled": true})
			eventually(t, "the other document has its text", func() bool { return w.rooms.text(beside) == "here" })
			if len(s.Ends) != 0 {
				t.Errorf("the other document's connection ended: %+v", s.Ends)
			}
			if s := b.tell("bad", "state", nil); kind == "y-websocket" && (len(s.Ends) != 1 || s.Ends[0].Reason != "The document is full.") {
				t.Errorf("ends = %+v, want one", s.Ends)
			}
			if n := w.rooms.seats(ref); n > 2 {
				t.Errorf("%d seats, want no new one of the refused client", n)
			}
		})
	}
}

// TestForceSync checks that forceSync requests everything again, and leaves nothing unsynced.
func TestForceSync(t *testing.T) {
	t.Parallel()
	for _, kind := range providers {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			w, b := newWorld(t, socket.Limits{}), newBrowser(t)
			ref := w.rooms.open(w.workspace)
			b.open(w, "a", kind, ref.Document.String(), nil)
			b.tell("a", "insert", args{"text": "text"})
			b.tell("a", "until", args{"synced": true, "settled": true})
			for range 3 {
				b.tell("a", "forceSync", nil)
				b.tell("a", "until", args{"settled": true})
			}
			b.tell("a", "stateless", args{"text": "nobody listens"})
			b.tell("a", "insert", args{"text": "more "})
			b.tell("a", "until", args{"settled": true})
			if got := w.rooms.text(ref); got != "more text" {
				t.Errorf("content = %q", got)
			}
		})
	}
}

// TestUnsynced checks that a client has unsynced changes until they are stored.
func TestUnsynced(t *testing.T) {
	t.Parallel()
	for _, kind := range providers {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			w, b := newWorld(t, socket.Limits{}), newBrowser(t)
			w.rooms.stored = make(chan struct{}, 100)
			ref := w.rooms.open(w.workspace)
			b.open(w, "a", kind, ref.Document.String(), nil)
			b.tell("a", "until", args{"synced": true, "unsynced": 1})
			b.tell("a", "type", args{"text": "x", "count": 4})
			b.tell("a", "until", args{"unsynced": 5})
			for i := range 5 { // step 2 and four updates
				w.rooms.stored <- struct{}{}
				b.tell("a", "until", args{"unsynced": 4 - i})
			}
		})
	}
}

// TestCloseCodes checks the close codes that clients understand.
func TestCloseCodes(t *testing.T) {
	t.Parallel()
	w, b := newWorld(t, socket.Limits{}), newBrowser(t)
	ref := w.rooms.open(w.workspace)
	for _, tc := range []struct {
		name, document, expires string
		code                    int
		reason                  string
	}{
		{"no such document", "6f1e0000-0000-7000-8000-000000000000", "", room.CloseGone, "There is no document"},
		{"no document's name", "my-page", "", room.CloseGone, "There is no such document."},
		{"an expired token", ref.Document.String(), in(-time.Second), room.CloseToken, "The token has expired"},
		{"a token that expires", ref.Document.String(), in(2 * time.Second), room.CloseToken, "The token has expired"},
		{"an invalid expiry", ref.Document.String(), "tomorrow", room.CloseToken, "The expiry of the token"},
	} {
		b.open(w, tc.name, "y-websocket", tc.document, args{"params": args{"expires": tc.expires}})
		s := b.tell(tc.name, "until", args{"ended": tc.code})
		if len(s.Ends) != 1 || !strings.HasPrefix(s.Ends[0].Reason, tc.reason) {
			t.Errorf("%s: %+v, want one end with %q", tc.name, s.Ends, tc.reason)
		}
	}
	// A document that is deleted while it is open.
	b.open(w, "editor", "y-websocket", ref.Document.String(), nil)
	b.tell("editor", "until", args{"synced": true})
	w.rooms.remove(ref)
	if s := b.tell("editor", "until", args{"ended": room.CloseGone}); s.Ends[0].Reason != "The document was deleted." {
		t.Errorf("deleted: %+v", s.Ends)
	}
}

// TestDrain checks that clients of an instance that shuts down connect to another one and lose
// nothing.
func TestDrain(t *testing.T) {
	t.Parallel()
	everyKind(t, func(t *testing.T, kind func(int) string) {
		w, b := newWorld(t, socket.Limits{Drain: 2 * time.Second}), newBrowser(t)
		ref := w.rooms.open(w.workspace)
		for i, id := range []string{"a", "b", "c"} {
			b.open(w, id, kind(i), ref.Document.String(), nil)
			b.tell(id, "until", args{"synced": true})
		}
		w.stop()
		<-w.stopped
		if n := w.handler.Count() + w.rooms.seats(ref); n != 0 {
			t.Errorf("%d connections and seats are left", n)
		}
		for _, id := range []string{"a", "b", "c"} {
			s := b.tell(id, "until", args{"ended": room.CloseRestart})
			if !strings.Contains(s.Ends[0].Reason, "about to restart") {
				t.Errorf("%s: %+v", id, s.Ends)
			}
		}
	})
}
