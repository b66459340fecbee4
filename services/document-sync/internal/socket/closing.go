package socket

import (
	"errors"
	"unicode/utf8"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/mux"
	"signalbox.dev/pkg/yjs"
	"signalbox.dev/services/document-sync/internal/room"
	"signalbox.dev/services/document-sync/internal/yproto"
)

// closing is why a connection, or a document on it, ends.
type closing struct {
	code   int
	reason string // for people, at most maxReason bytes reach them
	again  bool   // it may work when it is tried again
	log    bool   // it is our fault
	label  string // for the metrics, where the code does not say it
}

// Error implements error.
func (c *closing) Error() string { return c.reason }

// maxReason is what fits into a control frame behind the code.
const maxReason = 123

// The labels of ends that no close code of ours says.
const (
	labelClient  = "client"  // the client closed
	labelLost    = "lost"    // the connection broke, or was cut
	labelGateway = "gateway" // the gateway closed: of a slow reader, or one whose right has ended
)

var labels = map[int]string{
	room.CloseRestart:   "restart",
	room.CloseBusy:      "busy",
	room.CloseMalformed: "malformed",
	room.CloseTooBig:    "too_big",
	room.CloseToken:     "token",
	room.CloseForbidden: "forbidden",
	room.CloseGone:      "gone",
	room.CloseRefused:   "refused",
}

func (c closing) metric() string {
	if c.label != "" {
		return c.label
	}
	if l, ok := labels[c.code]; ok {
		return l
	}
	return "other"
}

// leftLabel says who ended a connection that the gateway has ended, by its code.
func leftLabel(code int) string {
	switch code {
	case mux.CodeLost:
		return labelLost
	case room.CloseBusy, room.CloseRestart, room.CloseToken, room.CloseForbidden, room.CloseMalformed, room.CloseTooBig:
		return labelGateway
	}
	return labelClient
}

// closingOf says how a connection, or a document on it, ends after an error of ours,
// of a message or of a seat.
func closingOf(err error) closing {
	if c, ok := errors.AsType[*closing](err); ok {
		return *c
	}
	if f, ok := errors.AsType[*fault.Error](err); ok {
		return closingOfFault(f)
	}
	switch {
	case errors.Is(err, yjs.ErrBudget):
		return closing{code: room.CloseTooBig, reason: "The update asks for too much: send smaller updates."}
	case errors.Is(err, yproto.ErrMalformed), errors.Is(err, yjs.ErrMalformed):
		return closing{code: room.CloseMalformed, reason: "The message cannot be read: " + err.Error()}
	}
	return closingOfFault(fault.From(err))
}

func closingOfFault(f *fault.Error) closing {
	switch f.Kind {
	case fault.NotFound:
		return closing{code: room.CloseGone, reason: f.Message}
	case fault.Forbidden:
		return closing{code: room.CloseForbidden, reason: f.Message}
	case fault.Unauthenticated:
		return closing{code: room.CloseToken, reason: f.Message}
	case fault.Invalid:
		return closing{code: room.CloseMalformed, reason: f.Message}
	case fault.TooLarge:
		return closing{code: room.CloseTooBig, reason: f.Message}
	case fault.Cancelled: // by an end that has begun
		return closing{label: labelLost}
	case fault.Unavailable, fault.Limited, fault.Conflict:
		return closing{code: room.CloseBusy, reason: f.Message, again: true}
	case fault.Deadline:
		return closing{code: room.CloseBusy, reason: "The document takes too long to load: try again later.", again: true, log: true}
	}
	return closing{code: room.CloseBusy, reason: "Something went wrong here: try again later.", log: true}
}

// clip cuts a reason to n bytes, at the border of a character.
func clip(s string, n int) string {
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
