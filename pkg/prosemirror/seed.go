package prosemirror

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"

	"signalbox.dev/pkg/yjs"
)

// Seed returns the update that makes an empty shared document equal doc in the root field.
// The same name (say, the document's id) and content always give the same update, so that
// several instances may apply it, repeatedly. Different content gives a conflicting update:
// use Write to change a document that was seeded.
func (s *Schema) Seed(name, field string, doc *Node) ([]byte, error) {
	doc = s.Fit(doc)
	content, err := s.JSON(doc)
	if err != nil {
		return nil, err
	}
	d := yjs.New(yjs.Options{ClientID: seedClient(name, content), GUID: name})
	d.Transact(nil, func(txn *yjs.Txn) { _, err = s.Write(txn, d.XMLFragment(field), doc) })
	if err != nil {
		return nil, fmt.Errorf("seed %s: %w", name, err)
	}
	return d.EncodeStateAsUpdate(nil), nil
}

// seedClient returns the client id of a seed: 32 bits, as Yjs clients have. It depends on
// the content because different updates must not share struct ids.
func seedClient(name string, content []byte) uint64 {
	h := sha256.New()
	h.Write([]byte(name))
	h.Write([]byte{0})
	h.Write(content)
	if id := binary.BigEndian.Uint32(h.Sum(nil)); id != 0 {
		return uint64(id)
	}
	return 1
}
