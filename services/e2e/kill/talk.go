package kill

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"time"

	"signalbox.dev/services/e2e/world"
)

// talker holds one conversation after the other.
type talker struct {
	*harness
	n   int
	rnd *rand.Rand

	// Of the current conversation.
	who      world.Member
	t        *transcript
	watchers []*watcher
	// background runs f concurrently with the conversation.
	background func(func(context.Context))
}

// run holds conversations until no more runs are offered; ctx is the harness's own.
func (k *talker) run(ctx context.Context) {
	for n := 0; k.offered(ctx); n++ {
		k.converse(ctx, fmt.Sprintf("t%dc%d", k.n, n))
	}
}

// converse holds a conversation: a session with a few exchanges and its witnesses.
func (k *talker) converse(ctx context.Context, name string) {
	k.who = k.members[k.rnd.IntN(len(k.members))]
	k.t, k.watchers = nil, nil
	session, ok := k.newSession(ctx, name)
	if !ok {
		return
	}
	k.t = newTranscript(session)
	k.t.versions = k.cfg.Versions
	watching, leave := context.WithCancel(ctx)
	defer leave()
	var wg sync.WaitGroup
	k.background = func(f func(context.Context)) { wg.Go(func() { f(watching) }) }
	for i := range 2 + k.rnd.IntN(2) {
		k.open(ctx, i > 0)
	}
	alive := true
	for i := 0; alive; i++ {
		alive = k.exchange(ctx, fmt.Sprintf("%se%d", name, i)) && i < 4 && k.offered(ctx)
	}
	k.settle(ctx)
	leave()
	wg.Wait()
	k.inspect(ctx)
}

// open starts a witness and waits until it is connected, so that it sees everything.
func (k *talker) open(ctx context.Context, cuts bool) {
	there := make(chan struct{})
	w := &watcher{
		harness: k.harness, t: k.t, who: k.who, rnd: k.fork(), cuts: cuts, last: map[int64]time.Time{}, waits: map[int64]bool{},
		open: sync.OnceFunc(func() { close(there) }),
	}
	if cuts {
		w.view = k.t.witness("reconnecting")
	} else {
		w.view, w.pauses = k.t.witness("staying"), k.pauses
	}
	k.watchers = append(k.watchers, w)
	k.background(w.watch)
	select {
	case <-there:
	case <-ctx.Done():
	}
}

// fork returns a random source for another goroutine.
func (k *talker) fork() *rand.Rand { return rand.New(rand.NewPCG(k.rnd.Uint64(), k.rnd.Uint64())) }

// exchange sends a message, or a few related ones, and waits for the answers. It returns false if
// the session cannot continue.
func (k *talker) exchange(ctx context.Context, id string) bool {
	k.mu.Lock()
	share := k.load.Wait
	k.mu.Unlock()
	if share > 0 && k.rnd.Float64() < share {
		return k.single(ctx, &ask{id: id, kind: wait})
	}
	switch n := k.rnd.IntN(100); {
	case n < 32:
		return k.single(ctx, &ask{id: id, kind: text, n: 8 + k.rnd.IntN(20)})
	case n < 40:
		return k.single(ctx, &ask{id: id, kind: clock})
	case n < 50:
		return k.single(ctx, &ask{id: id, kind: far})
	case n < 64:
		return k.asked(ctx, &ask{id: id, kind: asked})
	case n < 74:
		return k.document(ctx, &ask{id: id, kind: doc})
	case n < 83:
		return k.queue(ctx, id)
	case n < 93:
		return k.stop(ctx, id)
	default:
		return k.steer(ctx, id)
	}
}

func (k *talker) single(ctx context.Context, a *ask) bool {
	return k.send(ctx, a) && k.answered(ctx, a)
}

// document reads the document while it is written.
func (k *talker) document(ctx context.Context, a *ask) bool {
	if !k.send(ctx, a) {
		return false
	}
	if pause(ctx, between(k.rnd, 200*time.Millisecond, time.Second)) {
		k.readDocuments(ctx, a.document(), 1)
	}
	return k.answered(ctx, a)
}

// queue sends three messages at once, which are answered in order.
func (k *talker) queue(ctx context.Context, id string) bool {
	var all []*ask
	for i := range 3 {
		a := &ask{id: fmt.Sprintf("%sq%d", id, i), kind: text, n: 4 + k.rnd.IntN(6)}
		if !k.send(ctx, a) {
			return false
		}
		all = append(all, a)
	}
	for _, a := range all {
		if !k.answered(ctx, a) {
			return false
		}
	}
	return true
}

// stop sends a long request, sometimes with a second one queued, and stops them.
func (k *talker) stop(ctx context.Context, id string) bool {
	all := []*ask{{id: id, kind: long}}
	if k.rnd.IntN(2) == 0 {
		all = append(all, &ask{id: id + "b", kind: text, n: 5})
	}
	for _, a := range all {
		if !k.send(ctx, a) {
			return false
		}
	}
	if !pause(ctx, between(k.rnd, 0, 2*time.Second)) {
		return false
	}
	if !k.cancel(ctx) {
		return false
	}
	for _, a := range all {
		if !k.answered(ctx, a) {
			return false
		}
	}
	return true
}

// cancel stops the session's runs.
func (k *talker) cancel(ctx context.Context) bool {
	s := span{from: time.Now()}
	if !k.try(ctx, func(ctx context.Context, c world.Client) error { return c.Cancel(ctx, k.t.session) }) {
		return false
	}
	s.to = time.Now()
	k.t.mu.Lock()
	defer k.t.mu.Unlock()
	k.t.stops = append(k.t.stops, s)
	return true
}

// steer sends a message that joins the active run, unless it is too late.
func (k *talker) steer(ctx context.Context, id string) bool {
	a, b := &ask{id: id, kind: work}, &ask{id: id + "s", kind: turn, mode: "steer"}
	return k.send(ctx, a) && pause(ctx, between(k.rnd, 0, 1500*time.Millisecond)) && k.send(ctx, b) &&
		k.answered(ctx, a) && k.answered(ctx, b)
}

// send sends a message until it is accepted: by a response with its run, or by a stream, which is
// then read.
func (k *talker) send(ctx context.Context, a *ask) bool {
	a.key = a.id
	a.from = time.Now()
	k.t.mu.Lock()
	k.t.asks = append(k.t.asks, a)
	k.t.mu.Unlock()
	k.count(func(r *Report) { r.Messages++ })
	s := world.Sending{Content: a.content(), Mode: a.mode, Key: a.key}
	if a.mode == "" && k.rnd.IntN(2) == 0 {
		return k.sendAndFollow(ctx, a, s)
	}
	var run world.Run
	ok := k.try(ctx, func(ctx context.Context, c world.Client) (err error) {
		run, err = c.Submit(ctx, k.t.session, s)
		return err
	})
	if ok {
		k.accepted(ctx, a, run)
	}
	return ok
}

func (k *talker) sendAndFollow(ctx context.Context, a *ask, s world.Sending) bool {
	var stream *world.Stream
	c := k.client(k.rnd, k.who)
	stream, err := c.Send(ctx, k.t.session, s)
	if err != nil {
		k.refusal(k.t, err)
		k.count(func(r *Report) { r.Retries++ })
		stream = nil
	}
	var run world.Run
	if !k.try(ctx, func(ctx context.Context, c world.Client) (err error) {
		// With the same key the response names the run, even if the message arrives only now.
		run, err = c.Submit(ctx, k.t.session, s)
		return err
	}) {
		if stream != nil {
			_ = stream.Close()
		}
		return false
	}
	if stream != nil && stream.Run != run.ID {
		k.t.complain(repeated, "message %s was accepted as run %s and, with the same key, as run %s", a.id, stream.Run, run.ID)
	}
	k.accepted(ctx, a, run)
	w := &sender{ask: a, watcher: watcher{harness: k.harness, t: k.t, who: k.who, rnd: k.fork()}}
	w.view = k.t.witness("the sender of " + a.id)
	w.sender = true
	w.run = run.Ordinal
	k.background(func(ctx context.Context) { w.follow(ctx, stream) })
	return true
}

// accepted records a message's run, and sometimes sends the message again.
func (k *talker) accepted(ctx context.Context, a *ask, run world.Run) {
	k.t.mu.Lock()
	a.to, a.run, a.ordinal = time.Now(), run.ID, run.Ordinal
	k.t.mu.Unlock()
	if k.rnd.IntN(4) > 0 {
		return
	}
	var again world.Run
	if k.try(ctx, func(ctx context.Context, c world.Client) (err error) {
		again, err = c.Submit(ctx, k.t.session, world.Sending{Content: a.content(), Mode: a.mode, Key: a.key})
		return err
	}) && again.ID != run.ID {
		k.t.complain(repeated, "message %s was accepted as run %s and, with the same key, as run %s", a.id, run.ID, again.ID)
	}
}

// answered waits until a witness saw the end of a message's run. A run without progress for a
// minute is stuck.
func (k *talker) answered(ctx context.Context, a *ask) bool {
	for {
		k.t.mu.Lock()
		_, ended := k.t.ends[a.ordinal]
		changed := k.t.changed
		// A snapshot may stand for the end, if all witnesses were cut off before it.
		covered := !ended && k.t.covered(place{a.ordinal, 0})
		progress := a.to
		for _, at := range k.t.lastSeen {
			if at.After(progress) {
				progress = at
			}
		}
		k.t.mu.Unlock()
		if ended {
			k.count(func(r *Report) { r.Answered++ })
			return true
		}
		if covered && k.endedBySnapshot(ctx, a) {
			k.count(func(r *Report) { r.Answered++ })
			return true
		}
		left := stuckAfter - time.Since(progress)
		if left <= 0 {
			k.t.complain(stuck, "run %d (%s, message %s) has said nothing for %s; %s", a.ordinal, a.run, a.id, stuckAfter, k.describe(ctx, a.run))
			return false
		}
		timer := time.NewTimer(left)
		select {
		case <-changed:
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return false
		}
		timer.Stop()
	}
}

// endedBySnapshot reports whether a witness got a snapshot that has the end of a message's run.
func (k *talker) endedBySnapshot(ctx context.Context, a *ask) bool {
	var run world.Run
	ok := k.try(ctx, func(ctx context.Context, c world.Client) (err error) {
		run, err = c.Run(ctx, a.run)
		return err
	})
	k.t.mu.Lock()
	defer k.t.mu.Unlock()
	return ok && run.Ended() && k.t.covered(placeOf(deref(run.LastEventID)))
}

// settle waits until every witness has seen the end of every run.
func (k *talker) settle(ctx context.Context) {
	deadline := time.Now().Add(stuckAfter)
	for {
		behind := k.t.laggard()
		if behind == "" {
			return
		}
		if time.Now().After(deadline) {
			k.t.complain(late, "%s", behind)
			return
		}
		if !pause(ctx, 20*time.Millisecond) {
			return
		}
	}
}

// laggard names a witness that has not seen the end of a run that another one has seen.
func (t *transcript) laggard() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, s := range t.views {
		for run, end := range t.ends {
			if s.run != 0 && s.run != run {
				continue
			}
			if !s.knows(end) {
				return fmt.Sprintf("%s has not seen %s", s.name, end)
			}
		}
	}
	return ""
}

// knows reports whether the witness saw an event, or a snapshot that covers it.
func (s *view) knows(p place) bool {
	for _, x := range slices.Backward(s.sights) {
		if x.snapshot || x.place == p {
			return true
		}
	}
	return false
}

// inspect reads the session at its end, and checks everything.
func (k *talker) inspect(ctx context.Context) {
	ok := k.try(ctx, func(ctx context.Context, c world.Client) (err error) {
		k.t.messages, err = c.Messages(ctx, k.t.session)
		return err
	})
	for _, a := range k.t.asks {
		if a.run == "" || !ok {
			continue
		}
		var run world.Run
		if ok = k.try(ctx, func(ctx context.Context, c world.Client) (err error) {
			run, err = c.Run(ctx, a.run)
			return err
		}); ok {
			k.t.runs[a.run] = run
		}
		for _, x := range run.ToolCalls {
			if note := noteOf(x.Args); note != "" {
				k.t.counts[note] = k.far.Get(note)
			}
		}
		if a.kind == doc || a.kind == asked {
			k.readDocuments(ctx, a.document(), 2)
		}
	}
	if !ok || ctx.Err() != nil {
		return
	}
	k.judge(k.t)
}

// readDocuments reads all documents with a name. The last readings are kept for the check; earlier ones are
// intermediate readings.
func (k *talker) readDocuments(ctx context.Context, name string, round int) {
	at := span{from: time.Now()}
	var list struct {
		Documents []struct{ ID, Name string }
	}
	if !k.try(ctx, func(ctx context.Context, c world.Client) error {
		return c.Call(ctx, world.Request{Method: http.MethodGet, Path: "/api/documents?q=" + url.QueryEscape(name)}, &list)
	}) {
		return
	}
	for _, d := range list.Documents {
		if d.Name != name {
			continue
		}
		var got struct{ Document struct{ Content string } }
		at.from = time.Now()
		if !k.try(ctx, func(ctx context.Context, c world.Client) error {
			return c.Call(ctx, world.Request{Method: http.MethodGet, Path: "/api/documents/" + d.ID}, &got)
		}) {
			return
		}
		at.to = time.Now()
		k.t.mu.Lock()
		k.t.readings = append(k.t.readings, reading{at, name, got.Document.Content})
		if round > 1 {
			k.t.documents = append(k.t.documents, document{name, got.Document.Content})
		}
		k.t.mu.Unlock()
	}
}

// newSession creates a session, once even if the request is repeated.
func (k *talker) newSession(ctx context.Context, name string) (string, bool) {
	var made struct{ Session struct{ ID string } }
	ok := k.try(ctx, func(ctx context.Context, c world.Client) error {
		return c.Call(ctx, world.Request{
			Method: http.MethodPost, Path: "/api/sessions", Header: http.Header{"Idempotency-Key": {name}}, Body: map[string]any{"model": model, "tools": tools},
		}, &made)
	})
	return made.Session.ID, ok
}
