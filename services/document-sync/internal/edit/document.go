package edit

import (
	"fmt"
	"strings"

	"signalbox.dev/pkg/prosemirror"
	"signalbox.dev/pkg/yjs"
)

// Tree returns the content of a shared document.
func (e *Editor) Tree(doc *yjs.Doc) *prosemirror.Node {
	return e.schema.Read(doc.XMLFragment(prosemirror.Field))
}

// Write changes a shared document to equal next, and touches only what differs. It joins the
// caller's transaction if there is one.
func (e *Editor) Write(doc *yjs.Doc, next *prosemirror.Node) (written prosemirror.Written, err error) {
	doc.Transact(nil, func(txn *yjs.Txn) {
		written, err = e.schema.Write(txn, doc.XMLFragment(prosemirror.Field), next)
	})
	return written, err
}

// Render derives Markdown and plain text from a shared document.
func (e *Editor) Render(doc *yjs.Doc) (markdown, text string, err error) {
	tree := e.Tree(doc)
	return e.Markdown(tree), Plain(tree), nil
}

// Markdown returns a document as Markdown.
func (e *Editor) Markdown(tree *prosemirror.Node) string { return storable(e.schema.Render(tree)) }

// storable replaces NUL, which editors accept and Postgres does not.
func storable(s string) string { return strings.ReplaceAll(s, "\x00", "\ufffd") }

// New creates a shared document with initial content. The same name and tree always give the
// same update.
func (e *Editor) New(name string, tree *prosemirror.Node) (*yjs.Doc, error) {
	seed, err := e.schema.Seed(name, prosemirror.Field, tree)
	if err != nil {
		return nil, err
	}
	doc := yjs.New(yjs.Options{Limits: yjs.Unlimited()}) // trusted: our own encoding
	if err := doc.ApplyUpdate(seed, nil); err != nil {
		return nil, fmt.Errorf("apply the seed of a document: %w", err)
	}
	return doc, nil
}

// Plain returns the text of a document, one line per block with text.
func Plain(tree *prosemirror.Node) string {
	var b strings.Builder
	var walk func(n *prosemirror.Node)
	walk = func(n *prosemirror.Node) {
		inline := false
		for _, c := range n.Content {
			if c.IsText() {
				b.WriteString(c.Text)
				inline = true
				continue
			}
			walk(c)
		}
		if inline {
			b.WriteByte('\n')
		}
	}
	walk(tree)
	return storable(b.String())
}

// ApplySeed applies to a shared document a change made to it as Markdown: the difference between
// before and after. An empty before begins the document.
func (e *Editor) ApplySeed(doc *yjs.Doc, before, after string) error {
	tree := e.Tree(doc)
	next, err := e.ParseStored(after)
	if err != nil {
		return err
	}
	if e.schema.Render(tree) != before && before != "" {
		old, err := e.ParseStored(before)
		if err != nil {
			return err
		}
		if next, err = e.Merge(tree, old, next); err != nil {
			return err
		}
	}
	_, err = e.Write(doc, next)
	return err
}
