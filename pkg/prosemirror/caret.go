package prosemirror

import (
	"slices"

	"signalbox.dev/pkg/yjs"
)

// wantsCaret tells whether a change in text, or another one, is where the caret goes:
// behind the last change of text, else behind the last change. The last ones are made
// first.
func (w *sharedWriter) wantsCaret(text bool) bool { return !w.hasCaret || text && !w.inText }

// putCaretIn puts the caret into a text.
func (w *sharedWriter) putCaretIn(text *yjs.Text, index int) {
	if p, err := w.doc.RelativePosition(text, index, -1); err == nil {
		w.caret, w.hasCaret, w.inText = p, true, true
	}
}

// putCaret puts the caret between the children of an element. In one without children
// an editor wants no assoc.
func (w *sharedWriter) putCaret(f *yjs.XMLFragment, index int) {
	assoc := -1
	if index == 0 {
		assoc = 0
	}
	if p, err := w.doc.RelativePosition(f, index, assoc); err == nil {
		w.caret, w.hasCaret = p, true
	}
}

// caretBehind puts the caret behind the last children of t, which were inserted.
func (w *sharedWriter) caretBehind(t *twin, made []*twin) {
	if text := lastText(made); text != nil {
		if w.wantsCaret(true) {
			w.putCaretIn(text, text.Len())
		}
		return
	}
	if !w.wantsCaret(false) {
		return
	}
	last := made[len(made)-1] // an element: a text has the caret in it
	if w.s.textblock(last.tree.Type) {
		w.putCaret(last.fragment, 0)
		return
	}
	w.putCaret(t.fragment, t.indexBehind(last.element))
}

// lastText returns the last text in twins that were made.
func lastText(twins []*twin) *yjs.Text {
	for _, t := range slices.Backward(twins) {
		if t.element == nil {
			return t.run[len(t.run)-1].text
		}
		if text := lastText(t.kids); text != nil {
			return text
		}
	}
	return nil
}

// textblock tells whether a type of node holds text.
func (s *Schema) textblock(name string) bool {
	t := s.types[name]
	return t != nil && t.inlines
}
