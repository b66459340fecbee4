package room

import "signalbox.dev/pkg/yjs"

// Faulty makes documents panic: the functions are called before an update is applied and before
// a state is encoded. Call it before a document is opened.
func (h *Hub) Faulty(apply func(update []byte), encode func(doc *yjs.Doc)) {
	e := h.engine
	h.engine.apply = func(doc *yjs.Doc, update []byte) error {
		apply(update)
		return e.apply(doc, update)
	}
	h.engine.encode = func(doc *yjs.Doc, sv yjs.StateVector) []byte {
		encode(doc)
		return e.encode(doc, sv)
	}
}
