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

// closing is why a connection, or a document on it, is closed.
type closing struct {
	code   int
	reason string // for people; clipped to maxReason bytes
	again  bool   // a retry may succeed
	log    bool   // it is our fault
	label  string // for the metrics, if the code does not determine it
}

// Error implements error.
func (c *closing) Error() string { return c.reason }

// maxReason is the space in a control frame after the code.
const maxReason = 123

// The labels of closings without a close code of ours.
const (
	labelClient  = "client"  // closed by the client
	labelLost    = "lost"    // the connection broke or was cut
	labelGateway = "gateway" // closed by the gateway: a slow reader, or revoked access
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

// gatewayLabel returns the label of a connection that the gateway has closed with a code.
func gatewayLabel(code int) string {
	switch code {
	case mux.CodeLost:
		return labelLost
	case room.CloseBusy, room.CloseRestart, room.CloseToken, room.CloseForbidden, room.CloseMalformed, room.CloseTooBig:
		return labelGateway
	}
	return labelClient
}

// closingOf returns how an error of a message or a seat closes the connection or the document.
func closingOf(err error) closing {
	if c, ok := errors.AsType[*closing](err); ok {
		return *c
	}
	if f, ok := errors.AsType[*fault.Error](err); ok {
		return closingOfFault(f)
	}
	switch {
	case errors.Is(err, yjs.ErrBudget):
		return closing{code: room.CloseTooBig, reason: "The update is too expensive: send smaller updates."}
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
	case fault.Cancelled: // the connection is being closed already
		return closing{label: labelLost}
	case fault.Unavailable, fault.Limited, fault.Conflict:
		return closing{code: room.CloseBusy, reason: f.Message, again: true}
	case fault.Deadline:
		return closing{code: room.CloseBusy, reason: "The document takes too long to load: try again later.", again: true, log: true}
	}
	return closing{code: room.CloseBusy, reason: "Something went wrong here: try again later.", log: true}
}

// clip shortens a reason to n bytes without splitting a character.
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
