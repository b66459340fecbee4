package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"
)

// limitChat bounds the body of a chat's request, which by default has all messages of the chat, with
// their attachments. Only the last one is kept: limitMessage bounds it together with all other fields.
const limitChat = 5 * limitMessage

// lastMessageCounts lets the bodies of an operation have earlier messages that are not read.
func lastMessageCounts(o *huma.Operation) { o.Middlewares = append(o.Middlewares, keepLastMessage) }

// keepLastMessage reads a body that is larger than a message may be, and keeps the last of its
// messages. It reads one message after the other. A body of unknown length is left alone.
func keepLastMessage(hc huma.Context, next func(huma.Context)) {
	r, w := humago.Unwrap(hc)
	if r.ContentLength <= limitMessage || r.ContentLength > limitChat {
		next(hc)
		return
	}
	o := hc.Operation()
	limit := o.BodyReadTimeout * time.Duration(3+r.ContentLength>>20) / time.Duration(3+o.MaxBodyBytes>>20) // as bound has it
	err := hc.SetReadDeadline(time.Now().Add(limit))
	if err == nil {
		var body []byte
		if body, err = lastMessageOf(r.Body); err == nil {
			r.Body = io.NopCloser(bytes.NewReader(body))
			next(hc)
			return
		}
	}
	e := &Error{status: http.StatusBadRequest, Message: "the body is not valid JSON"}
	if timeout, ok := errors.AsType[net.Error](err); ok && timeout.Timeout() {
		e = &Error{status: http.StatusRequestTimeout, Message: "request body read timeout"}
	} else if errors.Is(err, errValueTooLarge) {
		e = chatTooLarge()
	}
	e.write(w)
}

func chatTooLarge() *Error {
	return &Error{
		status: http.StatusRequestEntityTooLarge, Code: "TOO_LARGE",
		Message: fmt.Sprintf("the body is too large: the limit is %d bytes for a message, and %d with the messages before it, which are not read: let prepareSendMessagesRequest send only the last one", limitMessage, limitChat),
	}
}

// lastMessageOf returns a chat's body without all messages but the last one. Its error is
// errValueTooLarge if more than limitMessage would be left.
func lastMessageOf(body io.Reader) ([]byte, error) {
	in := &valueReader{in: body}
	dec := json.NewDecoder(in)
	out := []byte{'{'}
	if err := in.delim(dec, '{'); err != nil {
		return nil, err
	}
	for in.more(dec) {
		name, err := in.token(dec)
		if err != nil {
			return nil, err
		}
		value, err := in.value(dec, name == "messages")
		if err != nil {
			return nil, err
		}
		key, err := json.Marshal(name)
		if err != nil {
			return nil, fmt.Errorf("write a chat's body: %w", err)
		}
		if len(out)+len(key)+len(value)+3 > limitMessage { // with a comma, a colon and a brace
			return nil, errValueTooLarge
		}
		if len(out) > 1 {
			out = append(out, ',')
		}
		out = append(append(append(out, key...), ':'), value...)
	}
	return append(out, '}'), in.delim(dec, '}')
}

var errValueTooLarge = errors.New("a value is too large")

// valueReader reads values of JSON of limited size.
type valueReader struct {
	in   io.Reader
	left int // of the value
}

// Read implements io.Reader.
func (r *valueReader) Read(p []byte) (int, error) {
	if r.left <= 0 {
		return 0, errValueTooLarge
	}
	n, err := r.in.Read(p[:min(len(p), r.left)])
	r.left -= n
	return n, err //nolint:wrapcheck // io.EOF
}

func (r *valueReader) token(dec *json.Decoder) (json.Token, error) {
	r.left = limitMessage
	return dec.Token() //nolint:wrapcheck // keepLastMessage reads it
}

func (r *valueReader) more(dec *json.Decoder) bool {
	r.left = limitMessage
	return dec.More()
}

func (r *valueReader) raw(dec *json.Decoder) (value json.RawMessage, err error) {
	r.left = limitMessage
	err = dec.Decode(&value)
	return value, err //nolint:wrapcheck // keepLastMessage reads it
}

func (r *valueReader) delim(dec *json.Decoder, want json.Delim) error {
	t, err := r.token(dec)
	if err == nil && t != want {
		err = fmt.Errorf("want %s", want)
	}
	return err
}

// value returns the next value or, of an array of which only the last element counts, an array of
// that.
func (r *valueReader) value(dec *json.Decoder, onlyLast bool) (value json.RawMessage, err error) {
	if !onlyLast {
		return r.raw(dec)
	}
	if err := r.delim(dec, '['); err != nil {
		return nil, err
	}
	for r.more(dec) {
		if value, err = r.raw(dec); err != nil {
			return nil, err
		}
	}
	return append(append([]byte{'['}, value...), ']'), r.delim(dec, ']')
}
