package room_test

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/yjs"
	documentv1 "signalbox.dev/proto/signalbox/document/v1"
	"signalbox.dev/services/document-sync/internal/room"
	"signalbox.dev/services/document-sync/internal/store"
)

// memory is a Store in memory that can fail, stall and be slow.
type memory struct {
	mu    sync.Mutex
	docs  map[store.Ref]*stored
	fail  map[string]error // errors by method
	stall map[string]chan struct{}
	calls map[string]int
	// panics makes the next call of a method panic.
	panics map[string]bool
	// lie is how often Append commits but returns an error, as if the response were lost.
	lie int
	// refuse makes Append refuse some updates permanently.
	refuse      func(update []byte) error
	quarantined []store.Quarantined
}

type stored struct {
	head     int64
	snapshot *store.Snapshot
	updates  []store.Update
	saves    []store.Snapshot
	seed     *store.Seed
	live     *yjs.Doc // with all updates
}

func newMemory() *memory {
	return &memory{docs: map[store.Ref]*stored{}, fail: map[string]error{}, stall: map[string]chan struct{}{}, calls: map[string]int{}, panics: map[string]bool{}}
}

func newRef() store.Ref {
	return store.Ref{Workspace: id.New[id.Workspace](), Document: id.New[id.Document]()}
}

// create creates an empty document in a new workspace.
func (m *memory) create() store.Ref { return m.createIn(id.New[id.Workspace]()) }

func (m *memory) createIn(ws id.Workspace) store.Ref {
	m.mu.Lock()
	defer m.mu.Unlock()
	ref := store.Ref{Workspace: ws, Document: id.New[id.Document]()}
	m.docs[ref] = &stored{live: yjs.New(yjs.Options{})}
	return ref
}

// enter begins every call: it waits while the method is stalled.
func (m *memory) enter(ctx context.Context, method string) error {
	m.mu.Lock()
	m.calls[method]++
	gate := m.stall[method]
	m.mu.Unlock()
	if gate != nil {
		select {
		case <-gate:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.panics[method] {
		delete(m.panics, method)
		panic("a bug in " + method)
	}
	return m.fail[method]
}

// block makes a method wait until the returned function is called.
func (m *memory) block(method string) (release func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	gate := make(chan struct{})
	m.stall[method] = gate
	return func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.stall, method)
		close(gate)
	}
}

// failing makes a method return an error; nil makes it work again.
func (m *memory) failing(method string, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fail[method] = err
}

// panicOnce makes the next call of a method panic.
func (m *memory) panicOnce(method string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.panics[method] = true
}

func (m *memory) count(method string) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.calls[method]
}

func (m *memory) remove(ref store.Ref) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.docs, ref)
}

func (m *memory) saves(ref store.Ref) []store.Snapshot {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.docs[ref].saves)
}

// lieOnce makes the next Append commit but return an error.
func (m *memory) lieOnce() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.lie = 1
}

func (m *memory) seed(ref store.Ref, s store.Seed) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.docs[ref].seed = &s
}

// behind returns the number of updates after the snapshot.
func (m *memory) behind(ref store.Ref) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.docs[ref].updates)
}

func (m *memory) head(ref store.Ref) int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.docs[ref].head
}

func (m *memory) find(ref store.Ref) (*stored, error) {
	if d := m.docs[ref]; d != nil {
		return d, nil
	}
	return nil, fault.New(fault.NotFound, "document %s does not exist", ref.Document)
}

func (m *memory) Load(ctx context.Context, ref store.Ref) (store.State, error) {
	if err := m.enter(ctx, "Load"); err != nil {
		return store.State{}, err
	}
	return m.since(ref, 0)
}

func (m *memory) Since(ctx context.Context, ref store.Ref, after int64) (store.State, error) {
	if err := m.enter(ctx, "Since"); err != nil {
		return store.State{}, err
	}
	return m.since(ref, after)
}

func (m *memory) since(ref store.Ref, after int64) (store.State, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	d, err := m.find(ref)
	if err != nil {
		return store.State{}, err
	}
	st := store.State{At: after, Seed: d.seed, Document: store.Document{Workspace: ref.Workspace, ID: ref.Document, Sequence: d.head}}
	if d.snapshot != nil && d.snapshot.Sequence > after {
		st.At, st.Snapshot = d.snapshot.Sequence, d.snapshot.State
	}
	for _, u := range d.updates {
		if u.Sequence > st.At {
			st.Updates = append(st.Updates, u)
		}
	}
	return st, nil
}

func (m *memory) Heads(ctx context.Context, refs []store.Ref) (map[store.Ref]int64, error) {
	if err := m.enter(ctx, "Heads"); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	heads := map[store.Ref]int64{}
	for _, ref := range refs {
		if d := m.docs[ref]; d != nil {
			heads[ref] = d.head
		}
	}
	return heads, nil
}

func (m *memory) Append(ctx context.Context, ref store.Ref, author store.Author, update []byte) (int64, error) {
	if err := m.enter(ctx, "Append"); err != nil {
		return 0, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	d, err := m.find(ref)
	if err != nil {
		return 0, err
	}
	if m.refuse != nil {
		if err := m.refuse(update); err != nil {
			return 0, err
		}
	}
	d.append(author, update)
	if m.lie > 0 {
		m.lie--
		return 0, errDown
	}
	return d.head, nil
}

func (d *stored) append(author store.Author, update []byte) {
	d.head++
	_ = d.live.ApplyUpdate(update, nil) // tests may store malformed updates
	d.updates = append(d.updates, store.Update{Sequence: d.head, Author: author, Data: slices.Clone(update)})
}

func (m *memory) ApplySeed(ctx context.Context, ref store.Ref, seed store.Seed, update []byte) (int64, bool, error) {
	if err := m.enter(ctx, "Plant"); err != nil {
		return 0, false, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	d, err := m.find(ref)
	if err != nil || d.seed == nil || *d.seed != seed {
		return 0, false, err
	}
	d.seed = nil
	d.append(store.Author{}, update)
	return d.head, true, nil
}

func (m *memory) Save(ctx context.Context, s store.Snapshot) error {
	if err := m.enter(ctx, "Save"); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	d, err := m.find(s.Ref)
	if err != nil {
		return err
	}
	d.saves = append(d.saves, s)
	if d.snapshot == nil || d.snapshot.Sequence < s.Sequence {
		d.snapshot = &s
		d.updates = slices.DeleteFunc(d.updates, func(u store.Update) bool { return u.Sequence <= s.Sequence })
	}
	return nil
}

func (m *memory) Quarantine(ctx context.Context, q store.Quarantined) error {
	if err := m.enter(ctx, "Quarantine"); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.quarantined = append(m.quarantined, q)
	return nil
}

// text returns the stored root text.
func (m *memory) text(t testing.TB, ref store.Ref) string {
	t.Helper()
	st, err := m.since(ref, 0)
	if err != nil {
		t.Fatal(err)
	}
	d := yjs.New(yjs.Options{})
	if st.Snapshot != nil {
		if err := d.ApplyUpdateV2(st.Snapshot, nil); err != nil {
			t.Fatal(err)
		}
	}
	for _, u := range st.Updates {
		if err := d.ApplyUpdate(u.Data, nil); err != nil {
			t.Fatal(err)
		}
	}
	return d.Text("t").String()
}

// hasAllBut checks that everything in a doc, except that of one client, is committed.
func (m *memory) hasAllBut(t testing.TB, ref store.Ref, doc *yjs.Doc, client uint64) {
	t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	have := m.docs[ref].live.StateVector()
	for id, clock := range doc.StateVector() {
		if id != client && clock > have[id] {
			t.Errorf("a doc has client %d up to %d, committed is %d", id, clock, have[id])
		}
	}
}

// mortal is the Store of an instance that may die: after that, nothing reaches the store.
type mortal struct {
	*memory

	dead atomic.Bool
}

func (m *mortal) die() { m.dead.Store(true) }

// alive blocks until ctx is done if the instance is dead.
func (m *mortal) alive(ctx context.Context) error {
	if m.dead.Load() {
		<-ctx.Done()
		return ctx.Err()
	}
	return nil
}

func (m *mortal) Load(ctx context.Context, ref store.Ref) (store.State, error) {
	if err := m.alive(ctx); err != nil {
		return store.State{}, err
	}
	return m.memory.Load(ctx, ref)
}

func (m *mortal) Since(ctx context.Context, ref store.Ref, after int64) (store.State, error) {
	if err := m.alive(ctx); err != nil {
		return store.State{}, err
	}
	return m.memory.Since(ctx, ref, after)
}

func (m *mortal) Append(ctx context.Context, ref store.Ref, author store.Author, update []byte) (int64, error) {
	if err := m.alive(ctx); err != nil {
		return 0, err
	}
	return m.memory.Append(ctx, ref, author, update)
}

func (m *mortal) Save(ctx context.Context, s store.Snapshot) error {
	if err := m.alive(ctx); err != nil {
		return err
	}
	return m.memory.Save(ctx, s)
}

// wire is a bus between hubs that loses some messages, and delivers the others late and in any
// order.
type wire struct {
	mu    sync.Mutex
	rand  *rand.Rand
	lose  float64
	delay time.Duration
	subs  map[store.Ref][]*subscriber
	again []func()
	said  int
}

type subscriber struct{ receive func(*documentv1.Change) }

func newWire() *wire {
	return &wire{rand: rand.New(rand.NewPCG(1, 2)), subs: map[store.Ref][]*subscriber{}}
}

// losing sets the fraction of messages that are lost.
func (w *wire) losing(part float64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lose = part
}

// count returns the number of published messages.
func (w *wire) count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.said
}

func (w *wire) Run(ctx context.Context) { <-ctx.Done() }

func (w *wire) OnReconnect(fn func()) func() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.again = append(w.again, fn)
	return func() {}
}

// reconnected calls the OnReconnect functions.
func (w *wire) reconnected() {
	w.mu.Lock()
	again := w.again
	w.mu.Unlock()
	for _, fn := range again {
		fn()
	}
}

func (w *wire) Publish(_ context.Context, ref store.Ref, c *documentv1.Change) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.said++
	for _, s := range w.subs[ref] {
		if w.rand.Float64() < w.lose {
			continue
		}
		time.AfterFunc(time.Duration(w.rand.Int64N(int64(w.delay)+1)), func() { s.receive(c) })
	}
	return nil
}

func (w *wire) Subscribe(ref store.Ref, receive func(*documentv1.Change)) (func(), error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := &subscriber{receive}
	w.subs[ref] = append(w.subs[ref], s)
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.subs[ref] = slices.DeleteFunc(w.subs[ref], func(x *subscriber) bool { return x == s })
	}, nil
}

// open starts a hub; the returned function stops it.
func open(t testing.TB, cfg room.Config) (h *room.Hub, stop func()) {
	t.Helper()
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	h = room.New(cfg)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := h.Run(ctx); err != nil {
			t.Errorf("Run() = %v", err)
		}
	}()
	return h, func() {
		cancel()
		<-done
	}
}

func editor() identity.Actor {
	return identity.Actor{Member: id.New[id.Member](), Role: identity.Editor}
}

// client is an editor: a doc, and a peer that keeps it in sync.
type client struct {
	t    testing.TB
	doc  *yjs.Doc
	seat *room.Seat
	mute bool // does not answer the server's step 1
	// actor is a new editor by default.
	actor identity.Actor
	// share is set if it shares a connection with others.
	share *room.Share

	mu        sync.Mutex // guards the rest
	got       []*room.Message
	code      int
	reason    string
	stored    int
	sent      int
	awareness [][]byte
	synced    bool
}

// Send implements room.Peer.
func (c *client) Send(m *room.Message) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.got = append(c.got, m)
}

// Share implements room.Peer.
func (c *client) Share() *room.Share {
	if c.share == nil {
		return &room.Share{} // one connection per document
	}
	return c.share
}

// Close implements room.Peer.
func (c *client) Close(code int, reason string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.code, c.reason = code, reason
}

func (c *client) closed() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.code
}

// join opens a document for a new client and syncs it.
func join(t testing.TB, h *room.Hub, ref store.Ref) *client {
	t.Helper()
	c := newClient(t)
	c.join(h, ref)
	return c
}

func newClient(t testing.TB) *client {
	c := &client{t: t, doc: yjs.New(yjs.Options{})}
	return c
}

func (c *client) join(h *room.Hub, ref store.Ref) {
	c.t.Helper()
	if id.IsZero(c.actor.Member) {
		c.actor = editor()
	}
	seat, err := h.Join(c.t.Context(), ref, c.actor, c)
	if err != nil {
		c.t.Fatalf("Join() = %v", err)
	}
	c.mu.Lock()
	c.seat, c.code, c.synced = seat, 0, false
	c.mu.Unlock()
	if err := seat.Sync(c.doc.StateVector().Encode()); err != nil {
		c.t.Fatalf("Sync() = %v", err)
	}
	c.read()
}

// read applies received messages, and responds.
func (c *client) read() {
	c.t.Helper()
	c.mu.Lock()
	got := c.got
	c.got = nil
	c.mu.Unlock()
	for _, m := range got {
		switch m.Kind {
		case room.KindStep1:
			sv, err := yjs.DecodeStateVector(m.Payload)
			if err != nil {
				c.t.Fatal(err)
			}
			if !c.mute {
				c.send(c.doc.EncodeStateAsUpdate(sv))
			}
		case room.KindStep2, room.KindUpdate:
			if err := c.doc.ApplyUpdate(m.Payload, "server"); err != nil {
				c.t.Fatal(err)
			}
			c.synced = c.synced || m.Kind == room.KindStep2
		case room.KindStored:
			c.stored++
		case room.KindAwareness:
			c.awareness = append(c.awareness, m.Payload)
		}
	}
}

func (c *client) send(update []byte) {
	c.t.Helper()
	if err := c.seat.Update(c.t.Context(), update); err != nil && c.closed() == 0 {
		c.t.Fatalf("Update() = %v", err)
	}
	c.sent++
}

// edit makes an edit and returns its update.
func (c *client) edit(f func(t *yjs.Text)) []byte {
	var update []byte
	stop := c.doc.OnUpdate(func(u *yjs.Update) { update = u.V1() })
	defer stop()
	c.doc.Transact(nil, func(*yjs.Txn) { f(c.doc.Text("t")) })
	return update
}

// write inserts text at a position and sends it.
func (c *client) write(at int, s string) {
	c.t.Helper()
	c.send(c.edit(func(t *yjs.Text) { t.Insert(at, s) }))
}

func (c *client) text() string {
	c.t.Helper()
	c.read()
	return c.doc.Text("t").String()
}

// settle waits until all messages are delivered, and has the clients read.
func settle(clients ...*client) {
	for range 2 { // for gathered messages, and the responses
		pass(8 * time.Millisecond)
		for _, c := range clients {
			c.read()
		}
	}
}

// pass advances the time.
func pass(d time.Duration) {
	t := time.NewTimer(d)
	<-t.C
	synctest.Wait()
}

func equal(t testing.TB, what string, got, want any) {
	t.Helper()
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%s = %v, want %v", what, got, want)
	}
}
