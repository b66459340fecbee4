package editing_test

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"signalbox.dev/pkg/prosemirror"
	"signalbox.dev/pkg/sse"
	"signalbox.dev/pkg/yjs"
	"signalbox.dev/services/e2e/world"
)

// setup is a cluster and a program with npm clients, shared by many tests.
type setup struct {
	*npm
	w      *world.World
	opened atomic.Int64
}

func newSetup(t *testing.T) *setup {
	t.Helper()
	w, err := world.Start(t.Context(), world.Options{Dir: t.TempDir(), Programs: programs, Partitions: 2})
	if w != nil {
		t.Cleanup(func() {
			for _, p := range w.Procs() {
				if tail := p.Tail(2000); t.Failed() && tail != "" {
					t.Logf("%s says:\n%s", p.Name(), tail)
				}
			}
			if err := w.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	if err != nil {
		t.Fatal(err)
	}
	return &setup{npm: startNPM(t), w: w}
}

// admin connects to the database as an administrator.
func (h *setup) admin(t *testing.T) *pgx.Conn {
	t.Helper()
	db, err := pgx.Connect(t.Context(), h.w.Database)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close(context.WithoutCancel(t.Context())) })
	return db
}

// party is one test's workspace and its members.
type party struct {
	*setup
	t             *testing.T
	owner, viewer world.Member
}

func (h *setup) party(t *testing.T) *party {
	t.Helper()
	p := &party{setup: h, t: t}
	p.owner = p.member("", "owner")
	p.viewer = p.member(p.owner.Workspace, "viewer")
	return p
}

func (p *party) member(workspace, role string) world.Member {
	p.t.Helper()
	m, err := p.w.NewMember(p.t.Context(), workspace, role)
	if err != nil {
		p.t.Fatal(err)
	}
	return m
}

// call sends a request of the owner to a gateway.
func (p *party) call(gateway int, method, path string, body map[string]string, out any) {
	p.t.Helper()
	r := world.Request{Method: method, Path: path}
	if body != nil {
		r.Body = body
	}
	if err := p.w.Client(gateway, p.owner).Call(p.t.Context(), r, out); err != nil {
		p.t.Fatalf("%s %s: %v", method, path, err)
	}
}

// create creates a document from Markdown and returns its id.
func (p *party) create(markdown string) string {
	p.t.Helper()
	var made struct{ Document struct{ ID string } }
	p.call(0, http.MethodPost, "/api/documents", map[string]string{"name": "Shared", "content": markdown}, &made)
	return made.Document.ID
}

// markdown reads a document at a gateway.
func (p *party) markdown(gateway int, doc string) string {
	p.t.Helper()
	var got struct{ Document struct{ Content string } }
	p.call(gateway, http.MethodGet, "/api/documents/"+doc, nil, &got)
	return got.Document.Content
}

func (p *party) patch(gateway int, doc, markdown string) {
	p.t.Helper()
	p.call(gateway, http.MethodPatch, "/api/documents/"+doc, map[string]string{"content": markdown}, nil)
}

func (p *party) remove(gateway int, doc string) {
	p.t.Helper()
	p.call(gateway, http.MethodDelete, "/api/documents/"+doc, nil, nil)
}

// say gives an agent a task in a new session; the returned function waits for the end of its run.
func (p *party) say(gateway int, text string) (wait func()) {
	p.t.Helper()
	c := p.w.Client(gateway, p.owner)
	run := p.submit(c, "", text)
	return func() {
		p.t.Helper()
		err := world.Follow(p.t.Context(), func() world.Client { return c }, world.RunEvents(run.ID), "", func(sse.Event) bool { return true })
		if err == nil {
			run, err = c.Run(p.t.Context(), run.ID)
		}
		if err != nil {
			p.t.Fatalf("%q: %v", text, err)
		}
		if run.State != "done" || len(run.ToolCalls) == 0 {
			p.t.Errorf("%q: the run is %s with %d tool calls", text, run.State, len(run.ToolCalls))
		}
		for _, call := range run.ToolCalls {
			if call.State == nil || *call.State != "ok" {
				p.t.Errorf("%q: the tool %s returned %v", text, call.Tool, call.Result)
			}
		}
	}
}

func (p *party) submit(c world.Client, model, text string) world.Run {
	p.t.Helper()
	session, err := c.NewSession(p.t.Context(), model)
	if err != nil {
		p.t.Fatal(err)
	}
	run, err := c.Submit(p.t.Context(), session, world.Sending{Content: text})
	if err != nil {
		p.t.Fatal(err)
	}
	return run
}

// seat says who opens which document, and how. The defaults are the owner, the token in the URL,
// and the first gateway.
type seat struct {
	kind     string
	gateway  int
	who      world.Member
	document string
	token    string // instead of the member's
	auth     bool   // the token is in the Auth message only
	socket   string // of Hocuspocus clients that share a connection
}

// open opens a document with an npm client, which is closed when the test ends.
func (p *party) open(s seat) *client {
	p.t.Helper()
	c := &client{t: p.t, n: p.npm, id: fmt.Sprint("client ", p.opened.Add(1)), kind: s.kind, gateway: s.gateway}
	if s.who == (world.Member{}) {
		s.who = p.owner
	}
	token := cmp.Or(s.token, s.who.Token)
	params, path := args{"workspace_id": s.who.Workspace}, "/ws/hocuspocus"
	with := args{"kind": s.kind, "name": s.document}
	switch {
	case s.kind == plainKind:
		path = "/ws/documents"
		params["token"] = token
	case s.auth:
		with["token"] = token
	default:
		params["token"] = token
	}
	if s.socket != "" {
		with["socket"] = p.t.Name() + s.socket // the program is shared
	}
	maps.Copy(with, args{"url": "ws" + strings.TrimPrefix(p.w.Gateways[s.gateway], "http") + path, "params": params})
	c.do("open", with)
	p.t.Cleanup(func() {
		if got, err := p.send(c.id, "end", nil); err == nil {
			<-got
		}
	})
	return c
}

// eventually waits until holds returns no complaint.
func eventually(t *testing.T, holds func() (complaint string)) {
	t.Helper()
	for deadline := time.Now().Add(timeout); ; pause(t.Context(), 20*time.Millisecond) {
		complaint := holds()
		if complaint == "" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", timeout, complaint)
		}
	}
}

// same waits until all clients have the same state, with everything that any of them has written,
// and no unsynced changes.
func same(t *testing.T, clients ...*client) status {
	t.Helper()
	var first status
	eventually(t, func() string {
		first = clients[0].do("canonical", nil)
		for _, c := range clients {
			s := c.do("canonical", nil)
			switch {
			case !s.Synced || s.Unsynced > 0:
				return fmt.Sprintf("%v is not synced: %v", c, s)
			case !bytes.Equal(s.Canonical, first.Canonical):
				return fmt.Sprintf("%v has %d bytes, %v; %v has %d bytes, %v", clients[0], len(first.Canonical), first, c, len(s.Canonical), s)
			}
		}
		return ""
	})
	return first
}

// everywhere waits until all clients have the same state and both gateways return its Markdown,
// which it returns.
func (p *party) everywhere(doc string, clients ...*client) string {
	p.t.Helper()
	var want string
	eventually(p.t, func() string {
		want = rendered(p.t, same(p.t, clients...).Update)
		for g := range p.w.Gateways {
			if got := p.markdown(g, doc); got != want {
				return fmt.Sprintf("gateway %d answers\n%s\nand clients have\n%s", g+1, got, want)
			}
		}
		return ""
	})
	return want
}

// rendered returns the Markdown of a state.
func rendered(t *testing.T, update []byte) string {
	t.Helper()
	doc := yjs.New(yjs.Options{})
	if err := doc.ApplyUpdate(update, nil); err != nil {
		t.Fatalf("apply the state of an npm client: %v", err)
	}
	schema := prosemirror.TipTap()
	return schema.Render(schema.Read(doc.XMLFragment(prosemirror.Field)))
}
