package editing_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"signalbox.dev/pkg/prosemirror"
	"signalbox.dev/pkg/yjs"
	"signalbox.dev/services/e2e/world"
)

// version is an entry of a document's history.
type version struct {
	Version   int
	Operation string
	MemberID  string `json:"member_id"`
	RunID     string `json:"run_id"`
	Undoes    int
	Undoable  bool
}

// history reads the newest versions of a document at a gateway.
func (p *party) history(gateway int, doc string) []version {
	p.t.Helper()
	var got struct{ Versions []version }
	p.call(gateway, http.MethodGet, "/api/documents/"+doc+"/versions", nil, &got)
	return got.Versions
}

// cursor returns the awareness state of an editor with its cursor before a text.
func cursor(t *testing.T, update []byte, name, before string) args {
	t.Helper()
	doc := yjs.New(yjs.Options{})
	if err := doc.ApplyUpdate(update, nil); err != nil {
		t.Fatal(err)
	}
	var at json.RawMessage
	doc.XMLFragment(prosemirror.Field).Each(func(n any) bool {
		p, ok := n.(*yjs.XMLElement)
		if !ok {
			return true
		}
		child, _ := p.Get(0)
		x, ok := child.(*yjs.XMLText)
		if !ok || !strings.Contains(x.String(), before) {
			return true
		}
		place, err := doc.RelativePosition(x.Text(), strings.Index(x.String(), before), 0)
		if err == nil {
			at, err = json.Marshal(place)
		}
		if err != nil {
			t.Fatal(err)
		}
		return false
	})
	if at == nil {
		t.Fatalf("%q is not in the document", before)
	}
	return args{"state": args{"user": args{"name": name}, "cursor": args{"anchor": at, "head": at}}}
}

// undone undoes and redoes an agent's edit as a whole while people have the document open: they see
// it at once, and what they typed since and their cursors stay.
func (p *party) undone() {
	doc := p.create("# Plan\n\nAlpha bravo charlie.\n\nDelta echo.\n")
	y := p.open(seat{kind: plainKind, gateway: 0, document: doc}).opened()
	hocus := p.open(seat{kind: "hocuspocus4", gateway: 1, document: doc}).opened()
	reader := p.open(seat{kind: plainKind, gateway: 1, who: p.viewer, document: doc})
	reader.do("aware", cursor(p.t, reader.until(args{"has": []string{"echo"}}).Update, "Reader", "echo"))
	caret := func(want string) {
		p.t.Helper()
		s := y.until(args{"writes": "Reader"})
		if _, r := s.writer("Reader"); r.Caret.Text[:r.Caret.At] != want {
			p.t.Errorf("the reader's cursor is at %d of %q, want it after %q", r.Caret.At, r.Caret.Text, want)
		}
	}
	caret("Delta ")

	p.say(1, "replace bravo charlie with beautiful words in document "+doc)()
	for _, c := range []*client{y, hocus} {
		c.until(args{"has": []string{"beautiful words"}})
	}
	y.do("keys", args{"behind": "Alpha", "text": " and mine"})
	hocus.do("keys", args{"behind": "Delta", "text": " and ours"})
	if got, want := p.everywhere(doc, y, hocus, reader), "# Plan\n\nAlpha and mine beautiful words.\n\nDelta and ours echo.\n"; got != want {
		p.t.Fatalf("the document is %q, want %q", got, want)
	}

	edit := version{}
	for _, v := range p.history(0, doc) {
		if v.RunID != "" && v.Operation == "edit" {
			edit = v
		}
	}
	if !edit.Undoable {
		p.t.Fatalf("the agent's edit is not in the history or not undoable: %+v", p.history(0, doc))
	}
	undo := func(gateway, version int, want string) {
		p.t.Helper()
		var sees []func() status
		for _, c := range []*client{y, hocus, reader} {
			sees = append(sees, c.begin("until", args{"has": []string{want}}))
		}
		p.call(gateway, http.MethodPost, fmt.Sprintf("/api/documents/%s/versions/%d/undo", doc, version), nil, nil)
		for _, wait := range sees {
			wait()
		}
	}
	const without = "# Plan\n\nAlpha and mine bravo charlie.\n\nDelta and ours echo.\n"
	undo(0, edit.Version, "bravo charlie")
	if got := p.everywhere(doc, y, hocus, reader); got != without {
		p.t.Errorf("without the agent's text the document is %q, want %q", got, without)
	}
	caret("Delta and ours ")
	newest := p.history(1, doc)
	if u, typed := newest[0], newest[1]; u.Operation != "undo" || u.Undoes != edit.Version || u.RunID != "" || u.MemberID != p.owner.ID ||
		typed.Operation != "write" || typed.RunID != "" {
		p.t.Errorf("history is %+v, want the undo after the typing", newest)
	}
	var refused *world.Refused
	err := p.w.Client(1, p.owner).Call(p.t.Context(), world.Request{
		Method: http.MethodPost, Path: fmt.Sprintf("/api/documents/%s/versions/%d/undo", doc, edit.Version),
	}, nil)
	if !errors.As(err, &refused) || refused.Status != http.StatusConflict || refused.Code != "ALREADY_UNDONE" {
		p.t.Errorf("a second undo = %v, want 409 ALREADY_UNDONE", err)
	}
	undo(1, newest[0].Version, "beautiful words")
	if got, want := p.everywhere(doc, y, hocus, reader), "# Plan\n\nAlpha and mine beautiful words.\n\nDelta and ours echo.\n"; got != want {
		p.t.Errorf("after redo the document is %q, want %q", got, want)
	}
}
