package prosemirror

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"

	"signalbox.dev/pkg/yjs"
)

// Seed returns the update that makes an empty shared document say what doc says in the
// root field. It is the same for the same name, say the id of the document, and content,
// whoever makes it, so that it may be applied by several and more than once. Other
// content is another update: a document that was seeded is changed by Write.
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

// seedClient returns who writes a seed: 32 bits, as all clients of Yjs have. It depends
// on the content because two updates that differ must not share their ids.
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
