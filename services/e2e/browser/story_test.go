package browser_test

import (
	"context"
	"flag"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"signalbox.dev/pkg/sse"
	"signalbox.dev/services/e2e/world"
)

// programs is the folder of the programs, created by TestMain.
var programs string

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "signalbox-browser-")
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

const page0 = `# The plan

Alpha begins. It goes on for a while.

Bravo has **bold** words and a [link](https://example.org).

- one
- two

1. first
2. second

- [ ] open
- [x] done

> Quoted words.

` + "```go\nfunc main() {}\n```" + `

| Who | What |
| --- | --- |
| Ann | writes |
| Ben | reads |

Omega ends.
`

// TestTwoPeopleAndAnAgent writes to one document from two pages on different gateways, while an
// agent's runs change it.
func TestTwoPeopleAndAnAgent(t *testing.T) {
	t.Parallel()
	s := begin(t)
	doc := s.create(page0)
	ann := s.d.open("Ann", s.w.Gateways[0], doc, s.ann)
	ben := s.d.open("Ben", s.w.Gateways[1], doc, s.ben)
	ann.see("Omega ends.")
	ben.see("Omega ends.")
	ben.until("people", []string{"Ann", "Ben"})

	// The text is inserted before a full stop and begins with a comma: during a redraw, a browser
	// may drop a space that is typed before another space or at the end of a text.
	ann.caret("Alpha begins")
	ben.caret("Omega ends")
	var work sync.WaitGroup
	work.Go(func() { ann.write(", gently, as Ann types", 15) })
	work.Go(func() { ben.write(", with what Ben types", 15) })
	work.Go(func() {
		s.say("replace Quoted with Repeated in document " + doc)
		s.say("append Agents were here. to document " + doc)
		s.say("replace reads with understands in document " + doc)
	})
	work.Wait()

	for _, p := range []*page{ann, ben} {
		for _, text := range []string{
			"Alpha begins, gently, as Ann types. It goes on", "Omega ends, with what Ben types.",
			"Repeated words.", "Agents were here.", "understands",
		} {
			p.see(text)
		}
	}
	s.same(ann, ben)
	// The carets have not moved: the agent wrote elsewhere.
	for p, want := range map[*page]string{ann: "Alpha begins, gently, as Ann types", ben: "Omega ends, with what Ben types"} {
		var got string
		if p.call("before", &got); got != want {
			t.Errorf("the text before the caret of %s is %q, want %q", p.name, got, want)
		}
	}
	markdown := s.read(doc)
	for _, want := range []string{"Alpha begins, gently, as Ann types. It goes", "> Repeated words.", "| Ben | understands |", "Agents were here."} {
		if !strings.Contains(markdown, want) {
			t.Errorf("the Markdown lacks %q:\n%s", want, markdown)
		}
	}

	s.noWriteBacks(doc, ann, ben)

	if err := s.client(s.ann).Call(t.Context(), world.Request{Method: http.MethodDelete, Path: "/api/documents/" + doc}, nil); err != nil {
		t.Fatal(err)
	}
	for _, p := range []*page{ann, ben} {
		var closed []struct{ Code int }
		for deadline := time.Now().Add(30 * time.Second); len(closed) == 0 && time.Now().Before(deadline); {
			p.call("closed", &closed)
		}
		if len(closed) == 0 || closed[0].Code != 4404 {
			t.Errorf("the connection of %s was closed with %v, want 4404", p.name, closed)
		}
		var errs []string
		if p.call("errors", &errs); len(errs) > 0 {
			t.Errorf("errors in the page of %s: %q", p.name, errs)
		}
	}
}

// noWriteBacks makes, undoes and redoes every kind of change that an agent can make, and checks that
// no editor writes anything in response.
func (s *scene) noWriteBacks(doc string, pages ...*page) {
	s.t.Helper()
	before := map[*page]int{}
	for _, p := range pages {
		before[p] = p.wrote()
	}
	last := "Alpha begins, gently"
	for i, content := range []string{
		"# Other\n\nA paragraph with *emphasis*, **strong**, `code`, ~~gone~~, ==marked?== and <u>under</u>.",
		"- a\n  - b\n    1. c\n\n- [ ] t\n  - [x] u",
		"| a | b | c |\n| :-- | --: | :-: |\n| 1 | 2 | 3 |\n\n---\n\n> q\n>\n> > r",
		"```\nx\n```\n\n![picture](https://example.org/p.png)\n\nline\\\nbreak",
		"",
		page0,
	} {
		mark := fmt.Sprintf("Mark %d.", i)
		s.patch(doc, content)
		s.say("append " + mark + " to document " + doc)
		see := func(text string) {
			for _, p := range pages {
				p.see(text)
			}
		}
		see(mark)
		appended := s.undo(doc, "append")
		patched := s.undo(doc, "replace")
		see(last)
		s.undoVersion(doc, patched)
		s.undoVersion(doc, appended)
		see(mark)
		last = mark
	}
	s.same(pages...)
	for _, p := range pages {
		if got := p.wrote(); got != before[p] {
			s.t.Errorf("the editor of %s wrote %d updates in response to an agent's changes", p.name, got-before[p])
		}
	}
}

// scene is a cluster with a browser and two people.
type scene struct {
	t        testing.TB
	w        *world.World
	d        *driver
	ann, ben world.Member
	session  string
}

func begin(t testing.TB) *scene {
	t.Helper()
	w, err := world.Start(t.Context(), world.Options{Dir: t.TempDir(), Programs: programs})
	if w != nil {
		t.Cleanup(func() {
			for _, p := range w.Procs() {
				if tail := p.Tail(3000); t.Failed() && tail != "" {
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
	s := &scene{t: t, w: w, d: drive(t)}
	if s.ann, err = w.NewMember(t.Context(), "", "owner"); err != nil {
		t.Fatal(err)
	}
	if s.ben, err = w.NewMember(t.Context(), s.ann.Workspace, "editor"); err != nil {
		t.Fatal(err)
	}
	if s.session, err = s.client(s.ann).NewSession(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *scene) client(who world.Member) world.Client { return s.w.Client(0, who) }

func (s *scene) create(content string) string {
	s.t.Helper()
	var made struct{ Document struct{ ID string } }
	err := s.client(s.ann).Call(s.t.Context(), world.Request{
		Method: http.MethodPost, Path: "/api/documents", Body: map[string]string{"name": "Shared", "content": content},
	}, &made)
	if err != nil {
		s.t.Fatal(err)
	}
	return made.Document.ID
}

func (s *scene) read(doc string) string {
	s.t.Helper()
	var got struct{ Document struct{ Content string } }
	if err := s.w.Client(1, s.ben).Call(s.t.Context(), world.Request{Method: http.MethodGet, Path: "/api/documents/" + doc}, &got); err != nil {
		s.t.Fatal(err)
	}
	return got.Document.Content
}

func (s *scene) patch(doc, content string) {
	s.t.Helper()
	err := s.client(s.ann).Call(s.t.Context(), world.Request{
		Method: http.MethodPatch, Path: "/api/documents/" + doc, Body: map[string]string{"content": content},
	}, nil)
	if err != nil {
		s.t.Fatal(err)
	}
}

// undo undoes the last undoable operation with a name, and returns the version of the undo.
func (s *scene) undo(doc, operation string) int {
	s.t.Helper()
	var history struct {
		Versions []struct {
			Version   int
			Operation string
			Undoable  bool
		}
	}
	if err := s.client(s.ben).Call(s.t.Context(), world.Request{Method: http.MethodGet, Path: "/api/documents/" + doc + "/versions"}, &history); err != nil {
		s.t.Fatal(err)
	}
	for _, v := range history.Versions {
		if v.Undoable && v.Operation == operation {
			return s.undoVersion(doc, v.Version)
		}
	}
	s.t.Fatalf("no %s can be undone: %+v", operation, history.Versions)
	return 0
}

func (s *scene) undoVersion(doc string, version int) int {
	s.t.Helper()
	var done struct{ Document struct{ Sequence int } }
	err := s.client(s.ben).Call(s.t.Context(), world.Request{
		Method: http.MethodPost, Path: fmt.Sprintf("/api/documents/%s/versions/%d/undo", doc, version),
	}, &done)
	if err != nil {
		s.t.Fatal(err)
	}
	return done.Document.Sequence
}

// say gives the agent a task and waits for the end of its run.
func (s *scene) say(text string) {
	s.t.Helper()
	c := s.client(s.ann)
	run, err := c.Submit(s.t.Context(), s.session, world.Sending{Content: text})
	if err == nil {
		err = world.Follow(s.t.Context(), func() world.Client { return c }, world.RunEvents(run.ID), "", func(sse.Event) bool { return true })
	}
	if err == nil {
		run, err = c.Run(s.t.Context(), run.ID)
	}
	if err != nil {
		s.t.Error(err)
		return
	}
	for _, call := range run.ToolCalls {
		if call.State == nil || *call.State != "ok" {
			s.t.Errorf("%q: the tool %s returned %v", text, call.Tool, call.Result)
		}
	}
	if run.State != "done" || len(run.ToolCalls) == 0 {
		s.t.Errorf("%q: the run is %s with %d tool calls", text, run.State, len(run.ToolCalls))
	}
}

// same waits until all pages show the same content.
func (s *scene) same(pages ...*page) {
	s.t.Helper()
	first := pages[0].json()
	for _, p := range pages[1:] {
		for deadline := time.Now().Add(30 * time.Second); p.json() != first; first = pages[0].json() {
			if time.Now().After(deadline) {
				s.t.Fatalf("the pages differ:\n%s: %s\n%s: %s", pages[0].name, first, p.name, p.json())
			}
		}
	}
}
