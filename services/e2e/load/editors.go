package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gorilla/websocket"
	"golang.org/x/sync/errgroup"

	"signalbox.dev/pkg/yjs"
)

// place is a document that editors open.
type place struct {
	url string
	// hocuspocus is the document's name in each message; empty for plain y-protocols.
	hocuspocus string
}

// editor is one connection to a document. It only reads the client and the clocks of other editors'
// updates.
type editor struct {
	room *room
	conn *websocket.Conn
	doc  *yjs.Doc
	text *yjs.XMLText
	at   int

	write sync.Mutex // the connection allows one writer
	seen  map[uint64]uint32
	ready chan struct{} // closed when the document has been received
}

// room is a document's editors.
type room struct {
	place   place
	editors []*editor

	mu   sync.Mutex // guards sent
	sent map[uint64]*stamps
}

// stamps are the times at which an editor sent its updates, one for each clock from first on.
type stamps struct {
	first uint32
	times []time.Time
}

// press is a set of editors.
type press struct {
	group     sync.WaitGroup
	stop      context.CancelFunc
	rooms     []*room
	delivered atomic.Int64 // received updates of all editors
	cut       atomic.Int64
	keep      atomic.Bool // record latencies

	mu        sync.Mutex // guards latencies
	latencies sample
}

// gather opens a number of editors in each place.
func gather(ctx context.Context, places []place, each int) (*press, error) {
	ctx, stop := context.WithCancel(ctx)
	p := &press{stop: stop}
	opening, _ := errgroup.WithContext(ctx)
	opening.SetLimit(32)
	for _, pl := range places {
		r := &room{place: pl, sent: map[uint64]*stamps{}, editors: make([]*editor, each)}
		p.rooms = append(p.rooms, r)
		opening.Go(func() error {
			for i := range r.editors {
				e, err := p.open(ctx, r)
				if err != nil {
					return err
				}
				r.editors[i] = e
			}
			return nil
		})
	}
	if err := opening.Wait(); err != nil {
		p.close()
		return nil, err
	}
	return p, nil
}

func (p *press) close() {
	p.stop()
	for _, r := range p.rooms {
		for _, e := range r.editors {
			if e != nil {
				quietly(e.conn.Close)
			}
		}
	}
	p.group.Wait()
}

// Message types of y-protocols and Hocuspocus.
const (
	msgSync  = 0
	msgAuth  = 2
	msgReply = 4 // Hocuspocus: a sync message that is a reply
	step1    = 0
	step2    = 1
	update   = 2
)

func (r *room) message(kind uint64, parts ...[]byte) []byte {
	var b []byte
	if name := r.place.hocuspocus; name != "" {
		b = append(binary.AppendUvarint(b, uint64(len(name))), name...)
	}
	b = binary.AppendUvarint(b, kind)
	for _, p := range parts {
		b = append(b, p...)
	}
	return b
}

func bytesOf(b []byte) []byte { return append(binary.AppendUvarint(nil, uint64(len(b))), b...) }

func (p *press) open(ctx context.Context, r *room) (*editor, error) {
	dialer := websocket.Dialer{HandshakeTimeout: 20 * time.Second, ReadBufferSize: 512, WriteBufferSize: 512}
	conn, res, err := dialer.DialContext(ctx, r.place.url, nil) //nolint:bodyclose // the library has read it
	if err != nil {
		if res != nil {
			err = fmt.Errorf("%s: %w", res.Status, err)
		}
		return nil, fmt.Errorf("open %s: %w", r.place.url, err)
	}
	e := &editor{room: r, conn: conn, doc: yjs.New(yjs.Options{}), seen: map[uint64]uint32{}, ready: make(chan struct{})}
	if r.place.hocuspocus != "" {
		err = e.send(r.message(msgAuth, []byte{0}, bytesOf([]byte("token"))))
	}
	if err == nil {
		err = e.send(r.message(msgSync, []byte{step1}, bytesOf(e.doc.StateVector().Encode())))
	}
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	p.group.Go(func() {
		p.read(e)
		if ctx.Err() == nil {
			p.cut.Add(1)
		}
	})
	select {
	case <-e.ready:
		return e, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-time.After(20 * time.Second):
		return nil, errors.Join(fmt.Errorf("%s did not send the document", r.place.url), conn.Close())
	}
}

func (e *editor) send(b []byte) error {
	e.write.Lock()
	defer e.write.Unlock()
	return e.conn.WriteMessage(websocket.BinaryMessage, b)
}

// read reads messages until the connection ends or a message is malformed.
func (p *press) read(e *editor) {
	begun := false
	for {
		_, b, err := e.conn.ReadMessage()
		if err != nil {
			return
		}
		now := time.Now()
		if e.room.place.hocuspocus != "" {
			n, size := binary.Uvarint(b)
			b = b[size+int(n):] //nolint:gosec // the measured server is trusted
		}
		if len(b) < 2 || b[0] != msgSync && b[0] != msgReply {
			continue
		}
		n, size := binary.Uvarint(b[2:])
		body := b[2+size:][:n]
		switch {
		case b[1] == update:
			p.note(e, body, now)
		case b[1] == step2 && !begun:
			begun = true
			if e.doc.ApplyUpdate(body, nil) != nil {
				return
			}
			close(e.ready)
		}
	}
}

// note counts the updates of other editors in an update.
func (p *press) note(e *editor, update []byte, now time.Time) {
	_, to, err := yjs.UpdateSpan(update)
	if err != nil {
		return
	}
	e.room.mu.Lock()
	defer e.room.mu.Unlock()
	for client, clock := range to {
		s := e.room.sent[client]
		if s == nil || client == e.doc.ClientID() {
			continue
		}
		from := max(e.seen[client], s.first)
		if clock <= from {
			continue
		}
		e.seen[client] = clock
		p.delivered.Add(int64(clock - from))
		if !p.keep.Load() {
			continue
		}
		p.mu.Lock()
		for c := from; c < clock && int(c-s.first) < len(s.times); c++ {
			p.latencies = append(p.latencies, now.Sub(s.times[c-s.first]))
		}
		p.mu.Unlock()
	}
}

// begin makes an editor a writer with its own paragraph.
func (e *editor) begin() error {
	var out []byte
	stop := e.doc.OnUpdate(func(u *yjs.Update) { out = slices.Clone(u.V1()) })
	defer stop()
	var err error
	e.doc.Transact(nil, func(*yjs.Txn) {
		paragraph := yjs.NewXMLElement("paragraph")
		e.text = yjs.NewXMLText("a")
		if err = e.doc.XMLFragment("default").Push(paragraph); err == nil {
			err = paragraph.Push(e.text)
		}
	})
	if err != nil {
		return err
	}
	e.at = 1
	e.room.mu.Lock()
	e.room.sent[e.doc.ClientID()] = &stamps{first: e.doc.StateVector()[e.doc.ClientID()]}
	e.room.mu.Unlock()
	return e.send(e.room.message(msgSync, []byte{update}, bytesOf(out)))
}

// press types one character.
func (e *editor) press() error {
	var out []byte
	stop := e.doc.OnUpdate(func(u *yjs.Update) { out = u.V1() })
	e.text.Text().Insert(e.at, "x")
	stop()
	e.at++
	e.room.mu.Lock()
	s := e.room.sent[e.doc.ClientID()]
	s.times = append(s.times, time.Now())
	e.room.mu.Unlock()
	return e.send(e.room.message(msgSync, []byte{update}, bytesOf(out)))
}

// typing makes the writers together type at a rate for some time, and returns the number of
// characters.
func typing(ctx context.Context, writers []*editor, rate int, long time.Duration) (int, error) {
	const hands = 8
	var typed atomic.Int64
	group, ctx := errgroup.WithContext(ctx)
	for hand := range hands {
		group.Go(func() error {
			var own []*editor
			for i := hand; i < len(writers); i += hands {
				own = append(own, writers[i])
			}
			if len(own) == 0 {
				return nil
			}
			pause := time.Second * time.Duration(len(writers)) / time.Duration(rate*len(own))
			tick := time.NewTicker(pause)
			defer tick.Stop()
			end := time.Now().Add(long)
			for n := 0; time.Now().Before(end); n++ {
				select {
				case <-tick.C:
				case <-ctx.Done():
					return ctx.Err()
				}
				if err := own[n%len(own)].press(); err != nil {
					return err
				}
				typed.Add(1)
			}
			return nil
		})
	}
	err := group.Wait()
	return int(typed.Load()), err
}
