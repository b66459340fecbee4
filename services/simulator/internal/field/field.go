// Package field reads JSON objects field by field, so that errors can name the path in the
// request as providers do.
package field

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
)

// Object is a JSON object with undecoded fields.
type Object map[string]json.RawMessage

// Error is an error at a path, such as messages.0.content, or "" for the whole body.
type Error struct {
	Path   string
	Reason string
}

// Error returns path and reason.
func (e *Error) Error() string {
	if e.Path == "" {
		return e.Reason
	}
	return e.Path + ": " + e.Reason
}

// Bad returns an error at a path.
func Bad(path, format string, args ...any) *Error {
	return &Error{Path: path, Reason: fmt.Sprintf(format, args...)}
}

// At joins a path and a name or index.
func At[T string | int](path string, name T) string {
	var s string
	switch v := any(name).(type) {
	case string:
		s = v
	case int:
		s = strconv.Itoa(v)
	}
	if path == "" {
		return s
	}
	return path + "." + s
}

// Parse reads the object at path.
func Parse(path string, raw json.RawMessage) (Object, error) {
	var o Object
	if err := json.Unmarshal(raw, &o); err != nil || o == nil {
		if path == "" && !json.Valid(raw) {
			return nil, Bad("", "the request body is not valid JSON")
		}
		return nil, Bad(path, "expected an object")
	}
	return o, nil
}

// Has reports whether the field is present and not null.
func (o Object) Has(name string) bool {
	raw, ok := o[name]
	return ok && !isNull(raw)
}

// Extra returns the alphabetically first field that is not in known, or "".
func (o Object) Extra(known []string) string {
	extra := ""
	for name := range o {
		if !slices.Contains(known, name) && (extra == "" || name < extra) {
			extra = name
		}
	}
	return extra
}

// Read decodes a field into into, unless it is absent or null. what names the expected type,
// such as "a valid integer".
func Read[T any](o Object, path, name, what string, into *T) error {
	raw, ok := o[name]
	if !ok || isNull(raw) {
		return nil
	}
	if json.Unmarshal(raw, into) != nil {
		return Bad(At(path, name), "expected %s", what)
	}
	return nil
}

// List reads an array. It returns nil if the field is absent or null.
func (o Object) List(path, name string) ([]json.RawMessage, error) {
	var list []json.RawMessage
	err := Read(o, path, name, "an array", &list)
	return list, err
}

// IsString reports whether raw is a JSON string.
func IsString(raw json.RawMessage) bool {
	raw = bytes.TrimLeft(raw, " \t\r\n")
	return len(raw) > 0 && raw[0] == '"'
}

func isNull(raw json.RawMessage) bool {
	return bytes.Equal(bytes.TrimSpace(raw), []byte("null"))
}
