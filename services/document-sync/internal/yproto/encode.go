package yproto

import "encoding/binary"

// The functions in this file append a message, or a part of it, to b. Hocuspocus messages
// begin with AppendDocument.

// AppendDocument begins a Hocuspocus message.
func AppendDocument(b []byte, name string) []byte { return appendBytes(b, name) }

// AppendStep1 asks for what the owner of a state vector lacks.
func AppendStep1(b, stateVector []byte) []byte {
	return appendBytes(append(b, typeSync, 0), stateVector)
}

// AppendStep2 answers a step 1 with an update.
func AppendStep2(b, update []byte) []byte { return appendBytes(append(b, typeSync, 1), update) }

// AppendUpdate sends an update.
func AppendUpdate(b, update []byte) []byte { return appendBytes(append(b, typeSync, 2), update) }

// AppendAwareness sends an awareness update.
func AppendAwareness(b, update []byte) []byte { return appendBytes(append(b, typeAwareness), update) }

// AppendDenied refuses a y-protocols client with a reason.
func AppendDenied(b []byte, reason string) []byte {
	return appendBytes(append(b, typeAuth, 0), reason)
}

// AppendHocuspocusDenied refuses a Hocuspocus client a document, with a reason.
func AppendHocuspocusDenied(b []byte, reason string) []byte {
	return appendBytes(append(b, typeAuth, 1), reason)
}

// AppendAuthenticated admits a Hocuspocus client to a document.
func AppendAuthenticated(b []byte, scope string) []byte {
	return appendBytes(append(b, typeAuth, 2), scope)
}

// AppendClose tells a Hocuspocus client that a document was closed, with a reason.
func AppendClose(b []byte, reason string) []byte { return appendBytes(append(b, typeClose), reason) }

// AppendSyncStatus tells a Hocuspocus client the outcome of its oldest unanswered update.
func AppendSyncStatus(b []byte, stored bool) []byte {
	if stored {
		return append(b, typeSyncStatus, 1)
	}
	return append(b, typeSyncStatus, 0)
}

// AppendPong answers a ping, which has no document.
func AppendPong(b []byte) []byte { return append(b, typePong) }

func appendBytes[T ~string | ~[]byte](b []byte, p T) []byte {
	return append(binary.AppendUvarint(b, uint64(len(p))), p...)
}
