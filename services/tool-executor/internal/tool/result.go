package tool

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Result is the answer to a call, a JSON object on one line. The zero Result is an error that
// says that the tool returned no result.
type Result struct {
	json      string
	isError   bool
	errorType string
	image     int // bytes of the picture that WithImage added
}

// File is a file in a result, in the form of a message's file part.
type File struct {
	Type      string `json:"type"` // always file
	MediaType string `json:"mediaType"`
	Data      []byte `json:"data"` // base64 in JSON
}

// Image returns a picture for the member image of a result; see Spec.ReturnsImage.
func Image(mediaType string, data []byte) File { return File{"file", mediaType, data} }

// Object returns v as JSON. A value that is not a JSON object becomes {"result": v}; one that
// cannot be marshalled becomes an error result.
func Object(v any) Result {
	b, err := marshal(v)
	if err == nil && !bytes.HasPrefix(b, []byte("{")) {
		b, err = marshal(map[string]json.RawMessage{"result": b})
	}
	if err != nil {
		return Errorf("internal", "the tool's result could not be encoded as JSON; continue without it")
	}
	return Result{json: string(b)}
}

// Errorf returns {"error": message}. The message says what went wrong and what to
// do; errorType is a short class for logs and statistics, such as invalid_arguments.
func Errorf(errorType, format string, args ...any) Result {
	b, err := marshal(map[string]string{"error": fmt.Sprintf(format, args...)})
	if err != nil { // a map of strings always marshals
		return Result{errorType: errorType, isError: true}
	}
	return Result{json: string(b), errorType: errorType, isError: true}
}

// Codes of causes; docs/api.md describes them.
const (
	Unavailable        = "UNAVAILABLE"
	NotConnected       = "NOT_CONNECTED"
	ConnectionRefused  = "CONNECTION_REFUSED"
	ConnectionDisabled = "CONNECTION_DISABLED"
	RateLimited        = "RATE_LIMITED"
	NeedsSignIn        = "NEEDS_SIGN_IN"
	ServerUnavailable  = "SERVER_UNAVAILABLE"
	DefinitionChanged  = "DEFINITION_CHANGED"
)

// Cause tells programs why a call failed, where somebody can do something about it. It is an error
// so that it can be the cause of a fault.
type Cause struct {
	Code    string `json:"code"`
	Service string `json:"service,omitempty"` // the provider of a connection, such as notion
	Server  string `json:"server,omitempty"`  // the name of an MCP server
	Reason  string `json:"reason,omitempty"`  // for people: what the other side said, or what is known
}

// Error implements error.
func (c *Cause) Error() string { return c.Code }

// WithCause returns the error result with the members of a cause, which may be nil.
func (r Result) WithCause(c *Cause) Result {
	b, err := marshal(c)
	rest, ok := strings.CutSuffix(r.json, "}")
	if c == nil || err != nil || !ok {
		return r
	}
	r.json = rest + "," + strings.TrimPrefix(string(b), "{")
	return r
}

// WithImage returns the result with a picture of at most MaxImage bytes as its member image, which
// it must not have yet. The tool has Spec.MayReturnImage.
func (r Result) WithImage(f File) Result {
	b, err := marshal(f)
	rest, ok := strings.CutPrefix(r.json, "{")
	if err != nil || !ok {
		return r
	}
	if rest != "}" {
		rest = "," + rest
	}
	added := `{"image":` + string(b)
	r.json, r.image = added+rest, len(added)
	return r
}

// Size returns the bytes of the envelope without a picture that was added.
func (r Result) Size() int { return len(r.JSON()) - r.image }

// Failure returns v as JSON, as Object does, for a call that went wrong: for tools whose errors
// have a shape of their own.
func Failure(errorType string, v any) Result {
	r := Object(v)
	r.isError, r.errorType = true, errorType
	return r
}

// JSON returns the envelope.
func (r Result) JSON() string {
	if r.json == "" {
		return `{"error":"the tool returned no result; continue without it"}`
	}
	return r.json
}

// IsError reports whether the call went wrong.
func (r Result) IsError() bool { return r.isError || r.json == "" }

// ErrorType returns the class of the error; empty when there is none.
func (r Result) ErrorType() string {
	if r.json == "" && r.errorType == "" {
		return "internal"
	}
	return r.errorType
}

// marshal returns v as JSON that every reader accepts, including Postgres' jsonb: invalid
// UTF-8, lone surrogates and NUL become U+FFFD.
func marshal(v any) ([]byte, error) {
	b, err := encode(v)
	if err != nil {
		return nil, err
	}
	if utf8.Valid(b) && !hasAny(b, `\u0000`, `\ud`, `\uD`) {
		return b, nil
	}
	// Decoding repairs invalid UTF-8 and lone surrogates.
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	var tree any
	if err := d.Decode(&tree); err != nil {
		return nil, fmt.Errorf("read back: %w", err)
	}
	return encode(withoutNUL(tree))
}

func encode(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false) // the JSON is not embedded in HTML, and documents are full of < and &
	if err := e.Encode(v); err != nil {
		return nil, fmt.Errorf("marshal: %w", err)
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

func hasAny(b []byte, all ...string) bool {
	for _, s := range all {
		if bytes.Contains(b, []byte(s)) {
			return true
		}
	}
	return false
}

func withoutNUL(v any) any {
	switch v := v.(type) {
	case string:
		return strings.ReplaceAll(v, "\x00", "\uFFFD")
	case []any:
		for i := range v {
			v[i] = withoutNUL(v[i])
		}
		return v
	case map[string]any:
		out := make(map[string]any, len(v))
		for k, e := range v {
			out[strings.ReplaceAll(k, "\x00", "\uFFFD")] = withoutNUL(e)
		}
		return out
	}
	return v
}

// OutputText returns the readable text of an envelope: its result, output, content or error
// if that is a string, otherwise the compact JSON. It drops control characters except line
// ends and tabs.
func OutputText(envelope string) string {
	var fields map[string]any
	if err := json.Unmarshal([]byte(envelope), &fields); err != nil {
		return readable(envelope)
	}
	for _, name := range []string{"result", "output", "content", "error"} {
		if s, ok := fields[name].(string); ok {
			return readable(s)
		}
	}
	var b bytes.Buffer
	if err := json.Compact(&b, []byte(envelope)); err != nil {
		return readable(envelope)
	}
	return readable(b.String())
}

func readable(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) && r != '\n' && r != '\t' {
			return -1
		}
		return r
	}, strings.ToValidUTF8(s, "\uFFFD"))
}
