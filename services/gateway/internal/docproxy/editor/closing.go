package editor

import (
	"errors"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/gorilla/websocket"
)

// The close codes that are this package's own: RFC 6455, section 7.4.
const (
	CodeLost      = 1006 // without a close frame; never sent
	codeMalformed = 1007
	codeTooBig    = 1009
	codeBusy      = 1013
)

// Closing is why a connection ends.
type Closing struct {
	Code    int
	Reason  string // for people, at most maxReason bytes reach them
	abandon bool   // what waits in the queue is thrown away
}

// Error implements error.
func (c *Closing) Error() string { return c.Reason }

// lost reports whether nothing can be told.
func (c *Closing) lost() bool { return c.Code == CodeLost || c.Code == 0 }

var (
	notBinary = Closing{Code: codeMalformed, Reason: "Messages have to be binary."}
	tooSlow   = Closing{Code: codeBusy, Reason: "The connection is too slow for what happens in the document: connect again.", abandon: true}
)

// ReadError says how a connection ends that cannot be read any further.
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
	// Gorilla's complaints about frames have no type.
	if strings.HasPrefix(err.Error(), "websocket: ") {
		return Closing{Code: codeMalformed, Reason: "This is not how WebSocket works: " + err.Error()}
	}
	return Closing{Code: CodeLost, Reason: "the connection broke"}
}

// closingOfPeer answers a close frame of the peer; 1006 is gorilla's word for an end
// without one.
func closingOfPeer(c *websocket.CloseError) Closing {
	switch c.Code {
	case websocket.CloseAbnormalClosure:
		return Closing{Code: CodeLost, Reason: "the client has left"}
	case websocket.CloseNoStatusReceived:
		return Closing{Code: websocket.CloseNormalClosure}
	}
	return Closing{Code: c.Code}
}

// maxReason is what fits into a control frame behind the code.
const maxReason = 123

// Clip cuts a text to n bytes, at the border of a character.
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

// longAgo is a deadline that wakes whoever reads.
var longAgo = time.Unix(1, 0)

// End begins the end, for the first reason that is given.
func (c *Conn) End(why Closing) {
	c.mu.Lock()
	if c.ending {
		c.mu.Unlock()
		return
	}
	if c.open { // the rest of the frame will never come
		why.Code = CodeLost
	}
	c.ending, c.why = true, why
	// In the lock: the deadline of Finish, which takes it before, has to come last.
	_ = c.wire.SetReadDeadline(longAgo)
	start := !why.lost() && c.endLocked(why)
	close(c.done)
	c.mu.Unlock()
	switch {
	case start:
		go c.run()
	case why.lost():
		_ = c.wire.SetWriteDeadline(longAgo) // the writer, if there is one, gives up
	}
}

// endLocked queues the close frame, and reports whether a writer has to be started.
func (c *Conn) endLocked(why Closing) bool {
	if why.abandon && !c.taken {
		clear(c.queue)
		c.queue = c.queue[:0]
		c.letGo(&c.holds)
	}
	c.queue = append(c.queue, closeFrame(why.Code, why.Reason))
	start := !c.writing
	c.writing = true
	return start
}
