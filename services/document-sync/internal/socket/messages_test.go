package socket_test

import "signalbox.dev/services/document-sync/internal/yproto"

// The messages of clients, which yproto only decodes.

var (
	queryAwareness = []byte{3}
	ping           = []byte{9}
)

// joinDocument asks a Hocuspocus server for a document, with an empty token.
func joinDocument(name string) []byte {
	return append(yproto.AppendDocument(nil, name), 2, 0, 0)
}
