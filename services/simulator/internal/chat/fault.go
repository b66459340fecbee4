package chat

import (
	"time"
)

// FaultKind says what goes wrong.
type FaultKind string

// Errors that a provider answers with. Each dialect has its own status, type and
// words for them.
const (
	Overloaded   FaultKind = "overloaded"
	RateLimited  FaultKind = "rate_limit"
	ServerError  FaultKind = "server_error"
	Unauthorized FaultKind = "unauthorized"
	Forbidden    FaultKind = "forbidden"
	NotFound     FaultKind = "not_found"
	TooLarge     FaultKind = "too_large"
	Invalid      FaultKind = "invalid"
	NoCredit     FaultKind = "no_credit"
	TimedOut     FaultKind = "timeout"
)

// Faults of the connection.
const (
	Stall FaultKind = "stall" // nothing more is sent, for a time or until the client leaves
	Reset FaultKind = "reset" // the TCP connection is reset
	Drop  FaultKind = "drop"  // the connection closes in the middle of the body
	Cut   FaultKind = "cut"   // the body ends cleanly, without its last event
)

// Fault is an error answer or a failing connection. It is an error, so that
// decoders can return it.
type Fault struct {
	Kind       FaultKind
	Status     int    // 0: the dialect's for Kind
	Type       string // "": the dialect's for Kind
	Code       string // OpenAI's code
	Param      string // OpenAI's param
	Message    string // "": the dialect's for Kind
	RetryAfter string // the header's value, "" for none
	Headers    map[string]string
	InStream   bool          // even when nothing was sent yet: an error inside a 200
	Late       bool          // behind the reason to stop: only the last event is missing
	Torn       bool          // in the middle of an event
	For        time.Duration // of a stall; 0: until the client leaves
}

// Error returns what happened.
func (f *Fault) Error() string {
	if f.Message != "" {
		return string(f.Kind) + ": " + f.Message
	}
	return string(f.Kind)
}

// Answers reports whether the fault is an error answer rather than a failing connection.
func (f *Fault) Answers() bool {
	switch f.Kind {
	case Stall, Reset, Drop, Cut:
		return false
	default:
		return true
	}
}

// Ends reports whether nothing follows the fault. Only a stall of a given length is survived.
func (f *Fault) Ends() bool {
	return f.Kind != Stall || f.For == 0
}
