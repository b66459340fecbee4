package docproxy

import (
	"context"
	"errors"
	"net"
	"time"

	"github.com/gorilla/websocket"

	"signalbox.dev/services/gateway/internal/docproxy/editor"
)

// Bounds of what a client may send before its token is known.
const (
	maxFirstMessages = 16
	maxFirstBytes    = 64 << 10
)

// Numbers of Hocuspocus' messages: after the document's name comes the kind of
// message and, in one of authentication, what it is about.
const (
	kindAuth   = 2
	authToken  = 0
	authDenied = 1
)

const reasonTooMuch = "too much came before the token"

// authMessage is a message of Hocuspocus that holds a token.
type authMessage struct{ document, token string }

// firstToken reads messages until one has a token, and returns them all.
func firstToken(ctx context.Context, c *editor.Conn, wait time.Duration) (a authMessage, kept [][]byte, err error) {
	stop := context.AfterFunc(ctx, func() {
		e := endingOf(withCause(ctx, ctx.Err()))
		c.End(editor.Closing{Code: e.code, Reason: e.reason})
	})
	defer stop()
	deadline := time.Now().Add(wait)
	total := 0
	for range maxFirstMessages {
		kind, msg, err := c.Before(maxFirstBytes, deadline)
		if err != nil {
			return authMessage{}, nil, withCause(ctx, whyUnread(err))
		}
		if total += len(msg); total > maxFirstBytes {
			return authMessage{}, nil, &ending{code: codeTooBig, reason: reasonTooMuch}
		}
		if kind != websocket.BinaryMessage {
			return authMessage{}, nil, &ending{code: codeMalformed, reason: "want binary messages"}
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

// whyUnread tells what an error of reading the first messages means.
func whyUnread(err error) error {
	if e, ok := errors.AsType[net.Error](err); ok && e.Timeout() {
		return errNoToken
	}
	if errors.Is(err, websocket.ErrReadLimit) {
		return &ending{code: codeTooBig, reason: reasonTooMuch}
	}
	e := editor.ReadError(err)
	return &ending{code: e.Code, reason: e.Reason}
}

// parseAuth returns the token of a message; false when it is of another kind.
func parseAuth(msg []byte) (a authMessage, found bool, err error) {
	r := reader{rest: msg}
	a.document = r.text()
	if r.number() != kindAuth || r.bad {
		return authMessage{}, false, r.err()
	}
	if r.number() != authToken || r.bad {
		return authMessage{}, false, r.err()
	}
	a.token = r.text()
	return a, !r.bad, r.err()
}

// denied is the message by which Hocuspocus' provider learns that its token was not
// accepted.
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

// reader takes a message apart. After something that is not there, bad is set and
// all that is read is zero.
type reader struct {
	rest []byte
	bad  bool
}

func (r *reader) err() error {
	if r.bad {
		return &ending{code: codeMalformed, reason: "a message is not one of Hocuspocus"}
	}
	return nil
}

// number reads a number in groups of 7 bits, the lowest first.
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

// text reads a number and as many bytes.
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
