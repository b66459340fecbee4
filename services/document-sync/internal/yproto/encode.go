package yproto

// The functions of this file append a message to b, or the part of it that their name
// says, and return the longer slice. With Hocuspocus AppendDocument comes first.

// AppendDocument begins a message of Hocuspocus.
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

// AppendQueryAwareness asks for everybody's awareness.
func AppendQueryAwareness(b []byte) []byte { return append(b, typeQueryAwareness) }

// AppendDenied refuses, in y-protocols, and says why.
func AppendDenied(b []byte, reason string) []byte {
	return appendBytes(append(b, typeAuth, 0), reason)
}

// AppendToken authenticates a Hocuspocus client; version is left out when it is empty,
// as versions before 4 do.
func AppendToken(b []byte, token, version string) []byte {
	b = appendBytes(append(b, typeAuth, 0), token)
	if version != "" {
		b = appendBytes(b, version)
	}
	return b
}

// AppendHocuspocusDenied refuses a document, in Hocuspocus, and says why.
func AppendHocuspocusDenied(b []byte, reason string) []byte {
	return appendBytes(append(b, typeAuth, 1), reason)
}

// AppendAuthenticated lets a Hocuspocus client into a document.
func AppendAuthenticated(b []byte, scope string) []byte {
	return appendBytes(append(b, typeAuth, 2), scope)
}

// AppendStateless sends what applications tell each other.
func AppendStateless(b []byte, payload string) []byte {
	return appendBytes(append(b, typeStateless), payload)
}

// AppendClose tells a Hocuspocus client that a document is closed for it, and why.
func AppendClose(b []byte, reason string) []byte { return appendBytes(append(b, typeClose), reason) }

// AppendLeave tells a Hocuspocus server that a document is not needed any longer.
func AppendLeave(b []byte) []byte { return append(b, typeClose) }

// AppendSyncStatus tells a Hocuspocus client how its oldest unanswered update fared.
func AppendSyncStatus(b []byte, stored bool) []byte {
	if stored {
		return append(b, typeSyncStatus, 1)
	}
	return append(b, typeSyncStatus, 0)
}

// AppendPing asks a Hocuspocus client of version 4 for a pong; no document comes first.
func AppendPing(b []byte) []byte { return append(b, typePing) }

// AppendPong answers a ping; no document comes first.
func AppendPong(b []byte) []byte { return append(b, typePong) }

func appendBytes[T ~string | ~[]byte](b []byte, p T) []byte {
	n := uint64(len(p))
	for ; n >= 0x80; n >>= 7 {
		b = append(b, byte(n)|0x80)
	}
	return append(append(b, byte(n)), p...)
}
