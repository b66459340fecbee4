package editor

import (
	"errors"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/gorilla/websocket"
)

// Close codes of RFC 6455, section 7.4.
const (
	CodeLost      = 1006 // no close frame; never sent
	codeMalformed = 1007
	codeTooBig    = 1009
	codeBusy      = 1013
)

// Closing is the reason why a connection ends.
type Closing struct {
	Code    int
	Reason  string // shown to people; at most maxReason bytes are sent
	abandon bool   // the queue is dropped
}

// Error implements error.
func (c *Closing) Error() string { return c.Reason }

// lost reports whether no close frame can be sent.
func (c *Closing) lost() bool { return c.Code == CodeLost || c.Code == 0 }

var (
	notBinary = Closing{Code: codeMalformed, Reason: "Messages have to be binary."}
	tooSlow   = Closing{Code: codeBusy, Reason: "The connection is too slow for what happens in the document: connect again.", abandon: true}
)

// ReadError returns the closing for a read error.
func ReadError(err error) Closing {
	if c, ok := errors.AsType[*Closing](err); ok {
		return *c
	}
	if c, ok := errors.AsType[*websocket.CloseError](err); ok {
		return closingOfPeer(c)
	}
	if errors.Is(err, websocket.ErrReadLimit) {
		return Closing{Code: codeTooBig, Reason: "The message is too large: send smaller updates."}
	}
	// gorilla's protocol errors have no type.
	if strings.HasPrefix(err.Error(), "websocket: ") {
		return Closing{Code: codeMalformed, Reason: "This is not how WebSocket works: " + err.Error()}
	}
	return Closing{Code: CodeLost, Reason: "the connection broke"}
}

// closingOfPeer returns the answer to a client's close frame. gorilla reports an end without
// one as 1006.
func closingOfPeer(c *websocket.CloseError) Closing {
	switch c.Code {
	case websocket.CloseAbnormalClosure:
		return Closing{Code: CodeLost, Reason: "the client has left"}
	case websocket.CloseNoStatusReceived:
		return Closing{Code: websocket.CloseNormalClosure}
	}
	return Closing{Code: c.Code}
}

// maxReason is the room for the reason in a control frame.
const maxReason = 123

// Clip shortens a text to n bytes without splitting a character.
func Clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	const more = "…"
	n -= len(more)
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + more
}

// longAgo is a deadline in the past, which unblocks a read or write.
var longAgo = time.Unix(1, 0)

// End begins to end the connection. Only the first call has an effect.
func (c *Conn) End(why Closing) {
	c.mu.Lock()
	if c.ending {
		c.mu.Unlock()
		return
	}
	if c.open { // no close frame can follow an incomplete frame
		why.Code = CodeLost
	}
	c.ending, c.why = true, why
	// Under the lock, so that the deadline that Finish sets comes later.
	_ = c.wire.SetReadDeadline(longAgo)
	start := !why.lost() && c.endLocked(why)
	close(c.done)
	c.mu.Unlock()
	switch {
	case start:
		go c.run()
	case why.lost():
		_ = c.wire.SetWriteDeadline(longAgo) // unblocks the writer
	}
}

// endLocked queues the close frame and reports whether a writer must be started.
func (c *Conn) endLocked(why Closing) bool {
	if why.abandon && !c.taken {
		clear(c.queue)
		c.queue = c.queue[:0]
		c.release(&c.inQueue)
	}
	c.queue = append(c.queue, closeFrame(why.Code, why.Reason))
	start := !c.writing
	c.writing = true
	return start
}
