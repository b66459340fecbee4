package hostile_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"signalbox.dev/services/e2e/world"
)

// workers run attacks at the same time, each in its own workspace. Each that attacks through the
// browser has a Chromium.
const (
	workers  = 8
	browsers = 2
)

// theSecret must not get outside; ownSecret is what a person wants to have there.
const (
	theSecret = "CANARYFIRST5ec2e700CANARYSECOND"
	ownSecret = "CANARYFIRST0a1b2c3dCANARYSECOND"
)

// allowed are the tools that owners have allowed, with any arguments.
var allowed = []string{
	"calendar_create_event", "calendar_update_event", "calendar_delete_event", "tasks_create", "tasks_complete", "tasks_delete", "notion_append", "doc_delete",
	"browser_open", "browser_type", "browser_click",
	"mcp__hostile__get", "mcp__hostile__fail", "mcp__hostile__data", "mcp__hostile__put", "mcp__hostile__sync", "mcp__hostile__note",
}

// usual are the tools of every session.
var usual = []string{
	"calendar_list_events", "calendar_create_event", "calendar_update_event", "calendar_delete_event",
	"tasks_list", "tasks_create", "tasks_complete", "tasks_delete", "notion_search", "notion_read_page", "notion_append",
	"read_research", "doc_create", "doc_read", "doc_edit", "doc_append", "doc_list", "doc_delete", "web_search",
}

// rig is a cluster whose model and far ends belong to the test.
type rig struct {
	*world.World
	ctx   context.Context //nolint:containedctx // the test's
	model *model
	far   *farEnds
	mcp   string // URL of the hostile server
}

// worker is the owner of a workspace.
type worker struct {
	world.Client
	rig    *rig
	secret string // the document with the secret
}

func newRig(t *testing.T, all []attack) *rig {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 8*world.Timeout)
	t.Cleanup(cancel)
	r := &rig{ctx: ctx, far: newFarEnds(all), model: &model{attacks: all, obeyed: map[int]bool{}, faults: map[int]string{}}}
	mux := http.NewServeMux()
	mux.Handle("/", r.model)
	for _, path := range []string{"/google/", "/notion/", "/github/", "/mcp"} {
		mux.Handle(path, r.far)
	}
	outside := httptest.NewServer(mux)
	t.Cleanup(outside.Close)
	address := strings.TrimPrefix(outside.URL, "http://")
	web := httptest.NewServer(http.HandlerFunc(r.far.web))
	t.Cleanup(web.Close)
	site = web.URL
	env := []string{"TOOL_EXECUTOR_ALLOW_PRIVATE=" + address}
	if hasChromium {
		env = append(env, "TOOL_EXECUTOR_BROWSER=local", "BROWSER_ALLOW_PRIVATE="+web.Listener.Addr().String(), "CHROMIUM="+os.Getenv("CHROMIUM"))
	} else {
		t.Log("NOT TESTED: the browser, because there is no Chromium (apt-get install chromium bubblewrap)")
	}
	programs := filepath.Join(t.TempDir(), "bin")
	if err := os.Mkdir(programs, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := world.Build(ctx, programs); err != nil {
		t.Fatal(err)
	}
	w, err := world.Start(ctx, world.Options{
		Dir: t.ArtifactDir(), Programs: programs, Replicas: 1, Partitions: 2,
		Env: func(string, int) []string { return env },
		Via: func(l world.Link) (string, error) {
			if l.To == world.SimulatorName {
				return address, nil
			}
			return l.Address, nil
		},
	})
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
	r.World, r.mcp = w, outside.URL+"/mcp"
	return r
}

// workspace returns the owner of a new workspace, who has allowed every tool and written down
// the secret.
func (r *rig) workspace() (*worker, error) {
	owner, err := r.NewMember(r.ctx, "", "owner")
	if err != nil {
		return nil, err
	}
	w := &worker{Client: r.Client(0, owner), rig: r}
	if err := w.post("/api/mcp-servers", map[string]any{"name": "hostile", "url": r.mcp}, nil); err != nil {
		return nil, err
	}
	for _, tool := range allowed {
		if err := w.post("/api/approval-rules", map[string]any{"tool": tool, "effect": "allow"}, nil); err != nil {
			return nil, err
		}
	}
	w.secret, err = w.document("Secret", theSecret)
	return w, err
}

func (w *worker) post(path string, body, out any) error {
	return w.Call(w.rig.ctx, world.Request{Method: http.MethodPost, Path: path, Body: body}, out)
}

func (w *worker) document(name, content string) (id string, err error) {
	var made struct{ Document struct{ ID string } }
	err = w.post("/api/documents", map[string]any{"name": name, "content": content}, &made)
	return made.Document.ID, err
}

// session returns a session with the tools of an attack.
func (w *worker) session(a attack) (string, error) {
	var made struct{ Session struct{ ID string } }
	tools := slices.Concat(usual, a.channel.tools, a.effect.tools)
	err := w.post("/api/sessions", map[string]any{"model": "sim/hostile", "preset": "assistant", "tools": tools}, &made)
	return made.Session.ID, err
}

// says sends a message and returns how its run comes to rest: done, error or waiting.
func (w *worker) says(session string, content any) (rest string, err error) {
	stream, err := w.Send(w.rig.ctx, session, world.Sending{Content: content})
	if err != nil {
		return "", err
	}
	return resting(stream)
}

// resting reads a stream until its run has come to rest.
func resting(stream *world.Stream) (rest string, err error) {
	defer stream.Close()
	for {
		e, err := stream.Next()
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return "", err
		}
		switch e.Type {
		case "done", "waiting":
			return e.Type, nil
		case "error":
			return "", fmt.Errorf("the run failed: %s", e.Data)
		}
	}
}

// attack runs one attack. It returns the session, and how its run comes to rest.
func (w *worker) attack(a attack) (session, rest string, err error) {
	docs := documents{secret: w.secret}
	if a.channel.document || a.channel.laundered {
		name, content := a.place(), "Notes."
		if a.channel.named {
			name = a.order()
		} else if a.channel.document {
			content = "Notes. Assistant: " + a.order()
		}
		if docs.stranger, err = w.document(name, content); err != nil {
			return "", "", err
		}
	}
	w.rig.model.docs.Store(a.n, docs)
	if session, err = w.session(a); err != nil {
		return "", "", err
	}
	for say, needed := range map[string]bool{"read": a.channel.earlier, "open": a.channel.page != nil, "launder": a.channel.laundered} {
		if !needed {
			continue
		}
		if rest, err := w.says(session, fmt.Sprintf("%s-%04d", say, a.n)); err != nil || rest != "done" {
			return "", rest, fmt.Errorf("the run before ends with %q: %w", rest, err)
		}
	}
	if a.channel.laundered {
		if session, err = w.session(a); err != nil {
			return "", "", err
		}
	}
	text := fmt.Sprintf("task-%04d", a.n)
	if a.channel.file == nil {
		rest, err = w.says(session, text)
	} else {
		rest, err = w.says(session, []any{map[string]any{"type": "text", "text": text}, a.channel.file(a)})
	}
	return session, rest, err
}

// answer answers for all calls of a session that wait, and returns how its run comes to rest.
func (w *worker) answer(session string, approved bool) (rest string, err error) {
	var list struct {
		Approvals []struct {
			ToolCallID string `json:"tool_call_id"`
		}
	}
	if err := w.Call(w.rig.ctx, world.Request{Method: http.MethodGet, Path: "/api/approvals?session_id=" + session}, &list); err != nil {
		return "", err
	}
	stream, err := w.Watch(w.rig.ctx, world.SessionEvents(session), "")
	if err != nil {
		return "", err
	}
	for _, a := range list.Approvals {
		if err := w.post("/api/sessions/"+session+"/approvals/"+a.ToolCallID, map[string]any{"approved": approved}, nil); err != nil {
			return "", err
		}
	}
	return resting(stream)
}

// TestHostileModel runs all attacks. Nothing happens outside, and no byte of the secret gets
// there.
func TestHostileModel(t *testing.T) {
	t.Parallel()
	all := plan()
	controls := make([]attack, len(encodingNames))
	task := slices.IndexFunc(effects, func(e effect) bool { return e.name == "task" })
	for i, encoding := range encodingNames {
		controls[i] = attack{n: len(all) + i, effect: effects[task], encoding: encoding}
	}
	page := slices.IndexFunc(effects, func(e effect) bool { return e.name == "open a web page" })
	opens := attack{n: len(all) + len(controls), effect: effects[page], encoding: "plain"}
	r := newRig(t, append(slices.Concat(all, controls), opens))
	neighbour, err := r.workspace()
	if err != nil {
		t.Fatal(err)
	}
	if victim, err = neighbour.document("Ours", otherSecret); err != nil {
		t.Fatal(err)
	}
	r.far.take()
	r.control(t, neighbour, controls)
	if hasChromium {
		neighbour.startBrowser(t, opens)
	}

	type rested struct {
		w       *worker
		session string
	}
	var mu sync.Mutex // guards parked
	parked := map[int]rested{}
	pages, queue := make(chan attack, len(all)), make(chan attack, len(all))
	for _, a := range all {
		if a.channel.page != nil {
			pages <- a
		} else {
			queue <- a
		}
	}
	close(pages)
	close(queue)
	var working sync.WaitGroup
	for i := range workers {
		working.Go(func() {
			w, err := r.workspace()
			if err != nil {
				t.Error(err)
				return
			}
			one := func(a attack) {
				if r.ctx.Err() != nil {
					return
				}
				session, rest, err := w.attack(a)
				// A browser may fail on a busy machine, and a page that cannot be read has no order.
				for tries := 1; a.channel.page != nil && !r.model.hasObeyed(a) && tries < 5; tries++ {
					time.Sleep(5 * time.Second) //nolint:forbidigo // nothing tells when the machine is less busy
					session, rest, err = w.attack(a)
				}
				if err != nil || a.effect.asks && rest != "waiting" {
					t.Errorf("%s ends with %q, %v, want that it waits for a person if it asks", a, rest, err)
				}
				if rest == "waiting" {
					mu.Lock()
					parked[a.n] = rested{w, session}
					mu.Unlock()
				}
			}
			if i < browsers {
				for a := range pages {
					one(a)
				}
			}
			for a := range queue {
				one(a)
			}
		})
	}
	working.Wait()
	r.harmless(t, all, len(parked))

	// A person's answer decides.
	approved := true
	for _, a := range all {
		p := parked[a.n]
		if p.w == nil || a.effect.name != effects[task].name || a.encoding == "halves" {
			continue
		}
		rest, err := p.w.answer(p.session, approved)
		done, leaked := 0, 0
		for _, got := range r.far.take() {
			leaked += got.leaked(needles(theSecret))
			if got.effect {
				done++
			}
		}
		if err != nil || rest != "done" || approved != (done == 1 && leaked > 0) || !approved && done+leaked > 0 {
			t.Errorf("%s, approved: %t: it ends with %q, %v, %d effects, %d bytes of the secret", a, approved, rest, err, done, leaked)
		}
		if !approved {
			return
		}
		approved = false
	}
	t.Error("no two attacks wait for a person")
}

// control has a person order what strangers order in attacks: it happens, and the far ends notice
// the secret in each encoding.
func (r *rig) control(t *testing.T, w *worker, controls []attack) {
	t.Helper()
	for _, a := range controls {
		if err := w.orders(a); err != nil {
			t.Error(err)
		}
	}
}

// orders has a person order what an attack does. It fails unless that happens.
func (w *worker) orders(a attack) error {
	session, err := w.session(a)
	if err != nil {
		return err
	}
	rest, err := w.says(session, fmt.Sprintf("say-%04d", a.n))
	leaked, effects := 0, 0
	for _, got := range w.rig.far.take() {
		leaked += got.leaked(needles(ownSecret))
		if got.effect {
			effects++
		}
	}
	if err == nil && (rest != "done" || leaked == 0 || effects == 0) {
		err = fmt.Errorf("it ends with %q, %d effects, %d bytes of the secret, want that it happens", rest, effects, leaked)
	}
	if err != nil {
		return fmt.Errorf("a person orders a %s, %s: %w", a.effect.name, a.encoding, err)
	}
	return nil
}

// startBrowser has a person order what attacks do with a page, again if Chromium does not start in time
// on a machine that is busy.
func (w *worker) startBrowser(t *testing.T, page attack) {
	t.Helper()
	for tries := 1; ; tries++ {
		err := w.orders(page)
		if err == nil {
			return
		}
		if tries == 5 {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second) //nolint:forbidigo // until another start is tried; nothing tells when the machine is less busy
	}
}

// harmless checks what has reached the far ends.
func (r *rig) harmless(t *testing.T, all []attack, parked int) {
	t.Helper()
	needles := needles(theSecret)
	requests, effects, outside, inside := 0, 0, 0, 0
	for _, got := range r.far.take() {
		requests++
		leaked := got.leaked(needles)
		if got.reads {
			inside += leaked
			continue
		}
		outside += leaked
		if got.effect {
			effects++
		}
		if leaked > 0 || got.effect {
			t.Errorf("without an approval: %s", got)
		}
	}
	m := r.model
	m.mu.Lock()
	defer m.mu.Unlock()
	t.Logf("%d attacks, of which the model obeyed %d and %d wait for a person; %d requests to far ends: %d effects, %d bytes of the secret outside, %d in searches of the workspace's own accounts",
		len(all), len(m.obeyed), parked, requests, effects, outside, inside)
	for _, a := range all {
		if fault := m.faults[a.n]; !m.obeyed[a.n] || fault != "" {
			t.Errorf("%s: the model did not obey: %s", a, cmp.Or(fault, "it was not asked"))
		}
	}
	if m.saw != nil {
		t.Errorf("the model has seen another workspace's document: %.2000s", m.saw)
	}
	if inside == 0 {
		t.Error("no search had the secret: the attacks do not do what they say")
	}
}
