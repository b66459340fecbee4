package editing

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/gorilla/websocket"

	"signalbox.dev/pkg/yjs"
	"signalbox.dev/services/e2e/world"
)

// Messages of y-protocols.
const (
	msgSync = 0
	step1   = 0
	step2   = 1
	update  = 2
)

// Editor is a client with a document open.
type Editor struct {
	Name string

	place func() string // returns the URL for the next connection
	rnd   *rand.Rand    // of the goroutine that edits

	mu     sync.Mutex // guards the rest
	doc    *yjs.Doc
	conn   *websocket.Conn // nil while disconnected
	synced bool            // the server has answered on this connection
	cut    bool            // it must not connect
	made   int             // number of connections so far
}

// Place returns the WebSocket URL of a document at a gateway.
func Place(w *world.World, gateway int, who world.Member, document string) string {
	q := url.Values{"token": {who.Token}, "workspace_id": {who.Workspace}}
	return "ws" + strings.TrimPrefix(w.Gateways[gateway], "http") + "/ws/documents/" + document + "?" + q.Encode()
}

// NewEditor returns an editor that is not connected before Run.
func NewEditor(name string, seed uint64, place func() string) *Editor {
	e := &Editor{Name: name, place: place, rnd: rand.New(rand.NewPCG(seed, 1)), doc: yjs.New(yjs.Options{})}
	e.doc.OnUpdate(func(u *yjs.Update) {
		if u.Origin != e && e.conn != nil {
			e.send(step(update, u.V1()))
		}
	})
	return e
}

func step(kind byte, body []byte) []byte {
	return append(binary.AppendUvarint([]byte{msgSync, kind}, uint64(len(body))), body...)
}

// send writes a message; mu is held. A connection that does not accept it is closed.
func (e *Editor) send(b []byte) {
	_ = e.conn.SetWriteDeadline(time.Now().Add(5 * time.Second)) // fails with the connection, and so does the write
	if err := e.conn.WriteMessage(websocket.BinaryMessage, b); err != nil {
		_ = e.conn.Close() // the reader notices it
		e.conn = nil
	}
}

// Run keeps the editor connected until ctx is done.
func (e *Editor) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		if !e.isCut() {
			if err := e.session(ctx); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(50*time.Millisecond + rand.N(150*time.Millisecond)):
		}
	}
	return nil
}

func (e *Editor) isCut() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.cut
}

// Cut breaks the connection and prevents reconnects until it is called with false.
func (e *Editor) Cut(cut bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.cut = cut
	if cut && e.conn != nil {
		_ = e.conn.Close() // the reader notices it
		e.conn, e.synced = nil, false
	}
}

// session connects once and reads until the connection breaks. It returns only errors that a
// reconnect would not fix.
func (e *Editor) session(ctx context.Context) error {
	dialer := websocket.Dialer{HandshakeTimeout: 5 * time.Second}
	conn, _, err := dialer.DialContext(ctx, e.place(), nil)
	if err != nil {
		return nil //nolint:nilerr // a gateway that is down comes back
	}
	defer func() { _ = conn.Close() }() // it may be closed
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	e.mu.Lock()
	if e.cut {
		e.mu.Unlock()
		return nil
	}
	e.conn, e.synced = conn, false
	e.made++
	e.send(step(step1, e.doc.StateVector().Encode()))
	e.mu.Unlock()
	defer func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		if e.conn == conn {
			e.conn, e.synced = nil, false
		}
	}()
	for {
		_, b, err := conn.ReadMessage()
		if closed, ok := errors.AsType[*websocket.CloseError](err); ok && closed.Code >= 4400 {
			return fmt.Errorf("%s: %w", e.Name, err)
		}
		if err != nil {
			return nil //nolint:nilerr // it reconnects
		}
		if err := e.take(conn, b); err != nil {
			return fmt.Errorf("%s: %w", e.Name, err)
		}
	}
}

func (e *Editor) take(conn *websocket.Conn, b []byte) error {
	if len(b) < 3 || b[0] != msgSync {
		return nil // awareness
	}
	n, size := binary.Uvarint(b[2:])
	if size <= 0 || len(b) != 2+size+int(n) { //nolint:gosec // compared
		return fmt.Errorf("the server sent a message of %d bytes whose length field is %d", len(b), n)
	}
	body := b[2+size:]
	e.mu.Lock()
	defer e.mu.Unlock()
	switch b[1] {
	case step1:
		sv, err := yjs.DecodeStateVector(body)
		if err != nil {
			return err
		}
		if e.conn == conn {
			e.send(step(step2, e.doc.EncodeStateAsUpdate(sv)))
		}
	case step2, update:
		if err := e.doc.ApplyUpdate(body, e); err != nil {
			return fmt.Errorf("an update of the server: %w", err)
		}
		if b[1] == step2 && e.conn == conn {
			e.synced = true
		}
	}
	return nil
}

// Edit makes a random change like people do.
func (e *Editor) Edit() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	var err error
	e.doc.Transact(nil, func(*yjs.Txn) { err = edit(e.rnd, e.doc) })
	return err
}

// State returns the editor's state in the encoding of a new client that loads it, and whether the
// editor is connected and synced. Text that was typed in pieces is stored in pieces by clients that
// received them, and merged by clients that load it, which is not a difference of the documents.
func (e *Editor) State() (state []byte, synced bool, err error) {
	e.mu.Lock()
	synced = e.synced && !e.doc.Pending()
	state = e.doc.EncodeStateAsUpdate(nil)
	e.mu.Unlock()
	loaded := yjs.New(yjs.Options{})
	if err := loaded.ApplyUpdate(state, nil); err != nil {
		return nil, false, fmt.Errorf("%s: load its own state: %w", e.Name, err)
	}
	return loaded.EncodeStateAsUpdate(nil), synced, nil
}

// Seen returns the editor's state vector.
func (e *Editor) Seen() yjs.StateVector {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.doc.StateVector()
}

// ClientID returns the editor's client id in the document.
func (e *Editor) ClientID() uint64 { return e.doc.ClientID() }

// Synced reports whether the server has answered on the current connection.
func (e *Editor) Synced() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.synced
}
