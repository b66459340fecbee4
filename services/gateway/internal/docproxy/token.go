package docproxy

import (
	"context"
	"errors"
	"net"
	"time"

	"github.com/gorilla/websocket"

	"signalbox.dev/services/gateway/internal/docproxy/editor"
)

// Bounds on what a client may send before its token.
const (
	maxFirstMessages = 16
	maxFirstBytes    = 64 << 10
)

// Constants of Hocuspocus' protocol: a message has the document's name, the kind of message
// and, if it is for authentication, a subtype.
const (
	kindAuth   = 2
	authToken  = 0
	authDenied = 1
)

const reasonTooMuch = "too many messages or bytes before the token"

// authMessage is a Hocuspocus message with a token.
type authMessage struct{ document, token string }

// firstToken reads messages until one has a token. It returns the token and all messages.
func firstToken(ctx context.Context, c *editor.Conn, wait time.Duration) (a authMessage, kept [][]byte, err error) {
	stop := context.AfterFunc(ctx, func() {
		e := endingOf(withCause(ctx, ctx.Err()))
		c.End(editor.Closing{Code: e.code, Reason: e.reason})
	})
	defer stop()
	deadline := time.Now().Add(wait)
	total := 0
	for range maxFirstMessages {
		kind, msg, err := c.ReadFirst(maxFirstBytes, deadline)
		if err != nil {
			return authMessage{}, nil, withCause(ctx, readEnding(err))
		}
		if total += len(msg); total > maxFirstBytes {
			return authMessage{}, nil, &ending{code: codeTooBig, reason: reasonTooMuch}
		}
		if kind != websocket.BinaryMessage {
			return authMessage{}, nil, &ending{code: codeMalformed, reason: "messages must be binary"}
		}
		kept = append(kept, msg)
		a, found, err := parseAuth(msg)
		if err != nil {
			return authMessage{}, nil, err
		}
		if found {
			return a, kept, nil
		}
	}
	return authMessage{}, nil, errNoToken
}

// readEnding returns the ending for an error of reading the first messages.
func readEnding(err error) error {
	if e, ok := errors.AsType[net.Error](err); ok && e.Timeout() {
		return errNoToken
	}
	if errors.Is(err, websocket.ErrReadLimit) {
		return &ending{code: codeTooBig, reason: reasonTooMuch}
	}
	e := editor.ReadError(err)
	return &ending{code: e.Code, reason: e.Reason}
}

// parseAuth returns the token of a message, or false if it is of another kind.
func parseAuth(msg []byte) (a authMessage, found bool, err error) {
	r := reader{rest: msg}
	a.document = r.text()
	if r.number() != kindAuth || r.number() != authToken || r.bad {
		return authMessage{}, false, r.err()
	}
	a.token = r.text()
	return a, !r.bad, r.err()
}

// denied returns the message that tells Hocuspocus' provider that its token was refused.
func denied(document, reason string) []byte {
	b := appendText(nil, document)
	b = append(b, kindAuth, authDenied)
	return appendText(b, reason)
}

func appendText(b []byte, s string) []byte {
	n := uint(len(s))
	for ; n >= 0x80; n >>= 7 {
		b = append(b, byte(n)|0x80)
	}
	return append(append(b, byte(n)), s...)
}

// reader parses a message. At the first error it sets bad; from then on it reads zeros.
type reader struct {
	rest []byte
	bad  bool
}

func (r *reader) err() error {
	if r.bad {
		return &ending{code: codeMalformed, reason: "a message does not follow the Hocuspocus protocol"}
	}
	return nil
}

// number reads a variable-length integer (LEB128).
func (r *reader) number() (n uint64) {
	for shift := 0; shift < 56 && !r.bad; shift += 7 {
		if len(r.rest) == 0 {
			break
		}
		b := r.rest[0]
		r.rest = r.rest[1:]
		n |= uint64(b&0x7f) << shift
		if b < 0x80 {
			return n
		}
	}
	r.bad = true
	return 0
}

// text reads a string that is preceded by its length.
func (r *reader) text() string {
	n := r.number()
	if n > uint64(len(r.rest)) {
		r.bad = true
	}
	if r.bad {
		return ""
	}
	s := string(r.rest[:n])
	r.rest = r.rest[n:]
	return s
}
