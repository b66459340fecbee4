package yproto

// The messages of clients, which the server only decodes.

// AppendQueryAwareness asks for everybody's awareness.
func AppendQueryAwareness(b []byte) []byte { return append(b, typeQueryAwareness) }

// AppendToken authenticates a Hocuspocus client. Versions before 4 send no version.
func AppendToken(b []byte, token, version string) []byte {
	b = appendBytes(append(b, typeAuth, 0), token)
	if version != "" {
		b = appendBytes(b, version)
	}
	return b
}

// AppendStateless sends an application's message.
func AppendStateless(b []byte, payload string) []byte {
	return appendBytes(append(b, typeStateless), payload)
}

// AppendLeave tells a Hocuspocus server that a document is closed.
func AppendLeave(b []byte) []byte { return append(b, typeClose) }

// AppendPing asks for a pong.
func AppendPing(b []byte) []byte { return append(b, typePing) }
