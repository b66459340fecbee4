package chat

import (
	"time"
)

// FaultKind is the kind of a Fault.
type FaultKind string

// Error responses of a provider. Each dialect has its own status, type and message for them.
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

// Fault is an error response or a connection failure. Decoders return it as an error.
type Fault struct {
	Kind       FaultKind
	Status     int    // 0: the dialect's for Kind
	Type       string // "": the dialect's for Kind
	Code       string // OpenAI's code
	Param      string // OpenAI's param
	Message    string // "": the dialect's for Kind
	RetryAfter string // the header's value, "" for none
	Headers    map[string]string
	InStream   bool          // send the error inside a 200 even if nothing was sent yet
	Late       bool          // after the reason to stop, so that only the last event is missing
	Torn       bool          // in the middle of an event
	For        time.Duration // of a stall; 0: until the client leaves
}

// Error implements error.
func (f *Fault) Error() string {
	if f.Message != "" {
		return string(f.Kind) + ": " + f.Message
	}
	return string(f.Kind)
}

// Answers reports whether the fault is an error response, not a connection failure.
func (f *Fault) Answers() bool {
	switch f.Kind {
	case Stall, Reset, Drop, Cut:
		return false
	default:
		return true
	}
}

// Ends reports whether the fault ends the answer. Only a stall of limited length does not.
func (f *Fault) Ends() bool {
	return f.Kind != Stall || f.For == 0
}
