package editing_test

import (
	"bytes"
	"cmp"
	"context"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"signalbox.dev/pkg/subject"
	"signalbox.dev/pkg/yjs"
	"signalbox.dev/services/e2e/editing"
	"signalbox.dev/services/e2e/world"
)

// programs is the folder of the programs, created by TestMain.
var programs string

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "signalbox-editing-")
		if err == nil {
			defer os.RemoveAll(dir)
			programs = dir
			err = world.Build(context.Background(), dir)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return m.Run()
	}())
}

const (
	editors  = 20
	watchers = 3
	// timeout bounds every wait.
	timeout = 90 * time.Second
)

// operations returns the number of edits: `make e2e-editing` sets more.
func operations() int64 {
	n, _ := strconv.ParseInt(os.Getenv("SIGNALBOX_E2E_EDITS"), 10, 64) // 0 if unset or invalid
	return cmp.Or(n, 5000)
}

// TestEditing checks the guarantees of the package comment.
func TestEditing(t *testing.T) {
	t.Parallel()
	s := begin(t)
	for range watchers {
		s.watch()
	}
	for range editors {
		s.hire()
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var trouble sync.WaitGroup
	trouble.Go(func() { s.havoc(ctx) })
	trouble.Go(func() { s.comeAndGo(ctx) })
	s.typing.Wait()
	stop()
	trouble.Wait()
	s.settle()
	t.Logf("%d edits, kills: %v, %d blackouts, %d editors left permanently", operations(), s.kills, s.blackouts, len(s.gone))
}

// scene is a document with its editors and watchers.
type scene struct {
	t        *testing.T
	w        *world.World
	who      world.Member // writes
	viewer   world.Member // only reads
	document string
	seed     uint64
	left     atomic.Int64 // edits still to make
	running  sync.WaitGroup
	typing   sync.WaitGroup
	kills    map[string]int
	blackouts,
	hired int

	mu       sync.Mutex // guards what follows
	working  []*worker
	watching []*editing.Editor
	gone     map[uint64]bool // the client ids of editors that left permanently
}

// worker is a working editor.
type worker struct {
	*editing.Editor
	leave context.CancelFunc
}

func begin(t *testing.T) *scene {
	w, err := world.Start(t.Context(), world.Options{Dir: t.TempDir(), Programs: programs, Durable: true, Env: unlimited})
	if w != nil {
		t.Cleanup(func() {
			if err := w.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	if err != nil {
		t.Fatal(err)
	}
	s := &scene{t: t, w: w, seed: rand.Uint64(), kills: map[string]int{}, gone: map[uint64]bool{}}
	t.Logf("seed %d", s.seed)
	t.Cleanup(s.running.Wait)
	s.left.Store(operations())
	if s.who, err = w.NewMember(t.Context(), "", "owner"); err != nil {
		t.Fatal(err)
	}
	if s.viewer, err = w.NewMember(t.Context(), s.who.Workspace, "viewer"); err != nil {
		t.Fatal(err)
	}
	var made struct{ Document struct{ ID string } }
	err = w.Client(0, s.who).Call(t.Context(), world.Request{Method: http.MethodPost, Path: "/api/documents", Body: map[string]string{"name": "Shared"}}, &made)
	if err != nil {
		t.Fatal(err)
	}
	s.document = made.Document.ID
	return s
}

// unlimited lifts the limits per member: all editors are the same member here.
func unlimited(service string, _ int) []string {
	if service != subject.Gateway {
		return nil
	}
	return []string{"GATEWAY_MEMBER_REQUESTS_PER_MINUTE=10000000", "GATEWAY_MEMBER_REQUESTS_BURST=1000000", "GATEWAY_MEMBER_STREAMS=1000", "GATEWAY_MEMBER_SOCKETS=1000"}
}

// place returns a function that returns the next URL, of the gateways in turn.
func (s *scene) place(who world.Member) func() string {
	var n atomic.Int64
	n.Store(rand.Int64N(2))
	return func() string { return editing.Place(s.w, int(n.Add(1)%2), who, s.document) }
}

// run keeps an editor connected until the returned function is called or the test ends.
func (s *scene) run(ctx context.Context, e *editing.Editor) (leave context.CancelFunc) {
	ctx, leave = context.WithCancel(ctx)
	s.running.Go(func() {
		if err := e.Run(ctx); err != nil {
			s.t.Error(err)
		}
	})
	return leave
}

func (s *scene) watch() *editing.Editor {
	e := editing.NewEditor("a watcher", 0, s.place(s.viewer))
	s.run(s.t.Context(), e)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.watching = append(s.watching, e)
	return e
}

// hire starts another editor, which writes until no edits are left.
func (s *scene) hire() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hired++
	e := editing.NewEditor(fmt.Sprint("editor ", s.hired), s.seed+uint64(s.hired), s.place(s.who))
	leave := s.run(s.t.Context(), e)
	ctx, cancel := context.WithCancel(s.t.Context())
	w := &worker{e, func() { leave(); cancel() }}
	s.working = append(s.working, w)
	s.typing.Go(func() {
		defer cancel()
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for s.left.Add(-1) >= 0 {
			if err := e.Edit(); err != nil {
				s.t.Errorf("%s: %v", e.Name, err)
				return
			}
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
		}
	})
}

// comeAndGo disconnects editors for a while, removes some and adds others.
func (s *scene) comeAndGo(ctx context.Context) {
	rnd := rand.New(rand.NewPCG(s.seed, 2))
	for turn := 1; pause(ctx, time.Second+rand.N(time.Second)); turn++ {
		s.mu.Lock()
		i := rnd.IntN(len(s.working))
		w := s.working[i]
		if turn%3 == 0 {
			s.working = append(s.working[:i], s.working[i+1:]...)
			s.gone[w.ClientID()] = true
		}
		s.mu.Unlock()
		if turn%3 == 0 {
			w.leave()
			s.hire() //nolint:contextcheck // the new editor outlives ctx
			continue
		}
		w.Cut(true)
		pause(ctx, time.Second)
		w.Cut(false)
	}
}

func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// havoc kills one part after the other until ctx is done.
func (s *scene) havoc(ctx context.Context) {
	rnd := rand.New(rand.NewPCG(s.seed, 3))
	victims := []string{"document-sync-1", "document-sync-2", "gateway-1", "gateway-2", world.NATSName, world.PostgresName, "document-sync-1", "document-sync-2"}
	for turn := 1; pause(ctx, time.Second+rand.N(time.Second)); turn++ {
		if turn%5 == 0 {
			s.blackout(s.t.Context(), turn%10 == 0) //nolint:contextcheck // the parts are restarted even after ctx
			continue
		}
		s.kill(s.t.Context(), victims[rnd.IntN(len(victims))], 200*time.Millisecond+rand.N(time.Second)) //nolint:contextcheck // as above
	}
}

// kill kills a part and restarts it after a while.
func (s *scene) kill(ctx context.Context, name string, away time.Duration) {
	s.kills[name]++
	for _, p := range s.w.Parts() {
		if p.Name() != name {
			continue
		}
		if err := p.Kill(); err != nil {
			s.t.Error(err)
			return
		}
		pause(ctx, away)
		s.revive(ctx, p)
	}
}

// revive starts a part until it stays up, like a supervisor: it may end because another part is
// unavailable.
func (s *scene) revive(ctx context.Context, p world.Part) {
	var err error
	for range 100 {
		if err = p.Restart(); err == nil {
			if err = p.Ready(ctx); err == nil {
				return
			}
		}
		pause(ctx, 100*time.Millisecond)
	}
	s.t.Errorf("%s does not stay up: %v", p.Name(), err)
}

// blackout disconnects all editors and kills the processes that hold the document. Afterwards the
// document must have everything that any watcher has seen, although no editor can resend it.
func (s *scene) blackout(ctx context.Context, everything bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.blackouts++
	for _, w := range s.working {
		w.Cut(true)
	}
	seen := yjs.StateVector{}
	for _, w := range s.watching {
		for client, clock := range w.Seen() {
			seen[client] = max(seen[client], clock)
		}
	}
	if everything {
		s.kill(ctx, world.PostgresName, 0)
	}
	s.kill(ctx, "document-sync-1", 0)
	s.kill(ctx, "document-sync-2", 0)
	fresh := editing.NewEditor("whoever opens the document", 0, s.place(s.viewer))
	leave := s.run(ctx, fresh)
	defer leave()
	if s.until("the document opens after a blackout", fresh.Synced) { //nolint:contextcheck // it waits as long as the test
		s.holds("after a blackout", fresh.Seen(), seen)
	}
	for _, w := range s.working {
		w.Cut(false)
	}
}

// holds checks that a state has everything that was seen.
func (s *scene) holds(when string, has, seen yjs.StateVector) {
	s.t.Helper()
	for client, clock := range seen {
		if has[client] < clock {
			s.t.Errorf("%s: the document has client %d up to %d, but others have seen %d", when, client, has[client], clock)
		}
	}
}

func (s *scene) until(what string, ok func() bool) bool {
	s.t.Helper()
	for deadline := time.Now().Add(timeout); !ok(); {
		if time.Now().After(deadline) {
			s.t.Errorf("not within %v: %s", timeout, what)
			return false
		}
		pause(s.t.Context(), 20*time.Millisecond)
	}
	return true
}

// settle reconnects everybody and compares their states.
func (s *scene) settle() {
	everyone := append([]*editing.Editor{}, s.watching...)
	for _, w := range s.working {
		w.Cut(false)
		everyone = append(everyone, w.Editor)
	}
	for g := range 2 {
		late := editing.NewEditor(fmt.Sprint("late editor at gateway ", g+1), 0, func() string { return editing.Place(s.w, g, s.viewer, s.document) })
		s.run(s.t.Context(), late)
		everyone = append(everyone, late)
	}
	own := yjs.StateVector{} // the edits of each editor, which all others must have
	s.until("all have the same", func() bool {
		first, ok := s.state(everyone[0])
		for _, e := range everyone[1:] {
			if !ok {
				return false
			}
			var state []byte
			state, ok = s.state(e)
			ok = ok && bytes.Equal(state, first)
		}
		return ok
	})
	for _, w := range s.working {
		own[w.ClientID()] = w.Seen()[w.ClientID()]
	}
	for _, e := range everyone {
		s.holds(e.Name, e.Seen(), own)
	}
	if s.t.Failed() {
		s.explain(everyone)
	}
}

func (s *scene) state(e *editing.Editor) (state []byte, synced bool) {
	state, synced, err := e.State()
	if err != nil {
		s.t.Error(err)
	}
	return state, synced
}

// explain logs how states that should be equal differ.
func (s *scene) explain(everyone []*editing.Editor) {
	first, _ := s.state(everyone[0])
	for _, e := range everyone {
		state, synced := s.state(e)
		seen, same := e.Seen(), "the same clocks"
		if !maps.Equal(seen, everyone[0].Seen()) {
			same = fmt.Sprint("other clocks: ", seen)
		}
		s.t.Logf("%s: synced %t, %d bytes, equal %t, %s", e.Name, synced, len(state), bytes.Equal(first, state), same)
	}
}
