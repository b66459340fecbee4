package prosemirror

import (
	"slices"

	"signalbox.dev/pkg/yjs"
)

// wantsCaret reports whether the caret belongs to a change, in text or elsewhere: it follows
// the last change of text, or the last change if none was in text. Changes are applied from
// the end, so the first candidate wins.
func (w *sharedWriter) wantsCaret(text bool) bool { return !w.hasCaret || text && !w.inText }

// putCaretIn puts the caret into a text.
func (w *sharedWriter) putCaretIn(text *yjs.Text, index int) {
	if p, err := w.doc.RelativePosition(text, index, -1); err == nil {
		w.caret, w.hasCaret, w.inText = p, true, true
	}
}

// putCaret puts the caret between the children of an element. Editors expect no assoc in an
// element without children.
func (w *sharedWriter) putCaret(f *yjs.XMLFragment, index int) {
	assoc := -1
	if index == 0 {
		assoc = 0
	}
	if p, err := w.doc.RelativePosition(f, index, assoc); err == nil {
		w.caret, w.hasCaret = p, true
	}
}

// caretAfter puts the caret after the children of t that were just inserted.
func (w *sharedWriter) caretAfter(t *sharedNode, made []*sharedNode) {
	if text := lastText(made); text != nil {
		if w.wantsCaret(true) {
			w.putCaretIn(text, text.Len())
		}
		return
	}
	if !w.wantsCaret(false) {
		return
	}
	last := made[len(made)-1] // an element: a text would have the caret in it
	if w.s.textblock(last.tree.Type) {
		w.putCaret(last.fragment, 0)
		return
	}
	w.putCaret(t.fragment, t.indexAfter(last.element))
}

// lastText returns the last text in new nodes.
func lastText(sharedNodes []*sharedNode) *yjs.Text {
	for _, t := range slices.Backward(sharedNodes) {
		if t.element == nil {
			return t.run[len(t.run)-1].text
		}
		if text := lastText(t.nodes); text != nil {
			return text
		}
	}
	return nil
}

// textblock reports whether nodes of the type hold text.
func (s *Schema) textblock(name string) bool {
	t := s.types[name]
	return t != nil && t.inlines
}
