package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"signalbox.dev/pkg/yjs"

	"signalbox.dev/services/e2e/editing"
	"signalbox.dev/services/e2e/world"
)

const (
	documents = 2
	writers   = 2 // of each document
	// typed is the time between two changes of a writer.
	typed = 200 * time.Millisecond
	// Writers are online and offline in turn, and write all the time.
	online, offline = 10 * time.Second, 6 * time.Second
)

// editors are people who edit documents through the gateway's Service while a scenario runs, and
// readers. Writers send again what the server has lost, so losses show while all of them are
// offline: a new client must then find everything that a reader has seen. A change that was not
// stored, but is in the next snapshot, does not show.
type editors struct {
	world         *world.World
	owner, viewer world.Member
	rooms         []*room
	stay          context.CancelFunc // ends the coming and going
	write         context.CancelFunc // ends the writing
	connect       context.CancelFunc // disconnects everybody
	coming        sync.WaitGroup
	writing       sync.WaitGroup
	connected     sync.WaitGroup
	changes       atomic.Int64

	mu     sync.Mutex // guards broken
	broken []string   // what did not hold
}

// room is a document and the clients that have it open.
type room struct {
	document string
	reader   *editing.Editor
	writers  []*editing.Editor
}

// edit makes documents, and lets people edit them until settle.
func (s *suite) edit(ctx context.Context) (*editors, error) {
	e := &editors{world: s.world}
	var err error
	if e.owner, err = s.world.NewMember(ctx, "", "owner"); err != nil {
		return nil, err
	}
	if e.viewer, err = s.world.NewMember(ctx, e.owner.Workspace, "viewer"); err != nil {
		return nil, err
	}
	for range documents {
		var made struct{ Document struct{ ID string } }
		err := s.world.Client(0, e.owner).Call(ctx, world.Request{Method: http.MethodPost, Path: "/api/documents", Body: map[string]string{"name": "Shared"}}, &made)
		if err != nil {
			return nil, err
		}
		e.rooms = append(e.rooms, &room{document: made.Document.ID})
	}
	var coming, writing context.Context
	ctx, e.connect = context.WithCancel(ctx)
	writing, e.write = context.WithCancel(ctx)
	coming, e.stay = context.WithCancel(ctx)
	for _, r := range e.rooms {
		r.reader = e.open(ctx, r, "a reader", e.viewer, 0)
		for n := range writers {
			w := e.open(ctx, r, fmt.Sprintf("writer %d", n+1), e.owner, s.rnd.Uint64())
			r.writers = append(r.writers, w)
			e.writing.Go(func() { e.keepTyping(writing, w) })
		}
		e.coming.Go(func() { e.comeAndGo(ctx, coming, r) })
	}
	return e, nil
}

// complain records what did not hold.
func (e *editors) complain(format string, args ...any) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.broken = append(e.broken, fmt.Sprintf(format, args...))
}

// open connects a client to a document until ctx is done.
func (e *editors) open(ctx context.Context, r *room, name string, who world.Member, seed uint64) *editing.Editor {
	c := editing.NewEditor(name+" of document "+r.document, seed, func() string { return editing.Place(e.world, 0, who, r.document) })
	e.connected.Go(func() {
		if err := c.Run(ctx); err != nil {
			e.complain("%v", err)
		}
	})
	return c
}

func (e *editors) keepTyping(ctx context.Context, w *editing.Editor) {
	for sleep(ctx, typed) == nil {
		if err := w.Edit(); err != nil {
			e.complain("%s: %v", w.Name, err)
			return
		}
		e.changes.Add(1)
	}
}

// comeAndGo takes the writers of a document offline again and again, and checks that nothing is lost.
func (e *editors) comeAndGo(ctx, coming context.Context, r *room) {
	for sleep(coming, online) == nil {
		r.cut(true)
		seen := r.reader.Seen()
		_ = sleep(coming, offline) // the check is made even then
		if fresh := e.fresh(ctx, r); fresh != nil {
			e.holds(fresh, seen)
		}
		r.cut(false)
	}
}

func (r *room) cut(cut bool) {
	for _, w := range r.writers {
		w.Cut(cut)
	}
}

// fresh returns a client that has just loaded a document, and is offline. It is nil if there is none.
func (e *editors) fresh(ctx context.Context, r *room) *editing.Editor {
	ctx, leave := context.WithCancel(ctx)
	defer leave()
	c := e.open(ctx, r, "a new client", e.viewer, 0)
	if !e.until(ctx, c.Synced) {
		e.complain("%s did not get it within %s", c.Name, patience)
		return nil
	}
	return c
}

// holds checks that a client has everything that was seen.
func (e *editors) holds(c *editing.Editor, seen yjs.StateVector) {
	has := c.Seen()
	for client, clock := range seen {
		if has[client] < clock {
			e.complain("%s has the changes of client %d up to %d, but others have seen %d", c.Name, client, has[client], clock)
		}
	}
}

// until waits for something that may take as long as anything in the cluster. It returns false if it
// did not come.
func (e *editors) until(ctx context.Context, ok func() bool) bool {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for !ok() {
		if sleep(ctx, 100*time.Millisecond) != nil {
			return false
		}
	}
	return true
}

// settle kills the pods that hold the documents, with every writer cut off in the middle of writing: a
// new client must find what readers have seen. Then writers come back, and every replica of a
// document has to become equal, and have each writer's changes.
func (s *suite) settle(ctx context.Context, e *editors, r *result) error {
	defer func() { r.Broken = append(r.Broken, e.broken...) }()
	pods, err := s.pods(ctx, "app.kubernetes.io/component=document-sync")
	if err != nil {
		return err
	}
	e.stay()
	e.coming.Wait()
	// They write on while they are offline. Before, readers shall see something new.
	if err := sleep(ctx, offline); err != nil {
		return err
	}
	seen := make([]yjs.StateVector, len(e.rooms))
	for i, place := range e.rooms {
		place.cut(true)
		seen[i] = place.reader.Seen()
	}
	// Soon: a snapshot, two seconds after the last change, has everything, stored before or not.
	var killing sync.WaitGroup
	errs := make([]error, len(pods))
	for i, pod := range pods {
		killing.Go(func() { errs[i] = s.killPod(ctx, pod) })
	}
	killing.Wait()
	e.write()
	e.writing.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	for i, place := range e.rooms {
		if fresh := e.fresh(ctx, place); fresh != nil {
			e.holds(fresh, seen[i])
		}
		place.cut(false)
	}
	for _, place := range e.rooms {
		e.same(ctx, place)
	}
	e.connect()
	e.connected.Wait()
	r.Figures = append(r.Figures, figure{"changes of documents", float64(e.changes.Load()), "made"})
	return s.ready(ctx)
}

// same checks that all replicas of a document become equal, and have each writer's changes.
func (e *editors) same(ctx context.Context, r *room) {
	equal := func() bool {
		state := e.state(r.reader)
		return state != nil && !slices.ContainsFunc(r.writers, func(w *editing.Editor) bool { return !bytes.Equal(e.state(w), state) })
	}
	if !e.until(ctx, equal) {
		e.complain("the replicas of document %s did not become equal within %s", r.document, patience)
	}
	own := yjs.StateVector{}
	for _, w := range r.writers {
		own[w.ClientID()] = w.Seen()[w.ClientID()]
	}
	e.holds(r.reader, own)
	if fresh := e.fresh(ctx, r); fresh != nil {
		e.holds(fresh, own)
	}
}

// state returns a client's state, or nil if it is not synced or has none.
func (e *editors) state(c *editing.Editor) []byte {
	state, synced, err := c.State()
	if err != nil || !synced {
		return nil
	}
	return state
}
