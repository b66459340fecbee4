package api

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"

	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"

	"signalbox.dev/services/gateway/internal/store"
)

// ID is an id as a parameter. It accepts the one spelling that id.Parse does.
type ID[T id.Kind] struct{ value T }

// UnmarshalText implements encoding.TextUnmarshaler.
func (p *ID[T]) UnmarshalText(text []byte) (err error) {
	p.value, err = id.Parse[T](string(text))
	return err
}

// String returns the id's canonical form.
func (p ID[T]) String() string { return fmt.Sprint(p.value) }

// parseID reads an id in a body; name is its field.
func parseID[T id.Kind](name, s string) (T, error) {
	v, err := id.Parse[T](s)
	if err != nil {
		return v, invalid("%s: %s", name, err)
	}
	return v, nil
}

// Idempotent is the header of a write that must not happen twice.
type Idempotent struct {
	Key idempotencyKey `header:"Idempotency-Key" doc:"Repeating the call with the same key returns the first call's result and changes nothing more. At most 255 printable ASCII characters."`
}

// Repeatable is the header of a write that can be repeated without a key.
type Repeatable struct {
	Key idempotencyKey `header:"Idempotency-Key" doc:"Accepted but not needed: the call can be repeated without it. Deleting something a second time answers 404."`
}

// SignInKey is the header of a write that starts a sign-in.
type SignInKey struct {
	Key idempotencyKey `header:"Idempotency-Key" doc:"Repeating the call with the same key returns the sign-in that the first call started, while it is open. A device sign-in gets new codes, and the previous ones become invalid. At most 255 printable ASCII characters."`
}

// idempotencyKey is a valid Idempotency-Key, or empty.
type idempotencyKey struct{ text string }

// UnmarshalText implements encoding.TextUnmarshaler.
func (k *idempotencyKey) UnmarshalText(text []byte) error {
	if len(text) > 255 {
		return errors.New("longer than 255 characters")
	}
	for _, c := range text {
		if c < ' ' || c > '~' {
			return errors.New("only printable ASCII characters are allowed")
		}
	}
	k.text = string(text)
	return nil
}

// operations is the namespace of operation ids that are derived from idempotency keys.
const operations = "6f2a7a30-5b8e-4b0a-9a4e-0b6f1d1c7a52"

// operation derives an operation's id from an actor's key. It is zero without a key: the
// call is not repeatable.
func (k idempotencyKey) operation(a identity.Actor, kind string) id.Operation {
	if k.text == "" {
		return id.Operation{}
	}
	return id.Derive(uuid.MustParse(operations), kind, a.Workspace.String(), a.Member.String(), k.text)
}

// operationText is operation in the form that the services take: empty without a key.
func (k idempotencyKey) operationText(a identity.Actor, kind string) string {
	if k.text == "" {
		return ""
	}
	return k.operation(a, kind).String()
}

// OperationKey derives the key of an operation, as the services take it, from an actor's
// idempotency key. It is empty without one. The error is for the caller of the operation.
func OperationKey(a identity.Actor, kind, key string) (string, error) {
	var k idempotencyKey
	if err := k.UnmarshalText([]byte(key)); err != nil {
		return "", invalid("idempotency_key: %s", err)
	}
	return k.operationText(a, kind), nil
}

// Conditional is the header of a change that requires the document to be in a certain state.
type Conditional struct {
	IfMatch ifMatch `header:"If-Match" doc:"An ETag. The change is made only if the document is still in that state; otherwise the answer is 412."`
}

// ifMatch is the sequence that the document must have: 0 for any, and -1, which no document
// has, for an ETag that is weak or not ours (RFC 9110, 13.1.1).
type ifMatch struct{ sequence int64 }

// UnmarshalText implements encoding.TextUnmarshaler.
func (m *ifMatch) UnmarshalText(text []byte) error {
	tag := strings.TrimSpace(string(text))
	if tag == "" || tag == "*" {
		return nil
	}
	opaque := strings.TrimPrefix(tag, "W/")
	if len(opaque) < 2 || opaque[0] != '"' || strings.IndexByte(opaque[1:], '"') != len(opaque)-2 {
		return errors.New("want one ETag from an answer, with its quotes, or *")
	}
	n, err := strconv.ParseInt(strings.Trim(tag, `"`), 10, 64)
	if err != nil || n < 1 {
		n = -1
	}
	m.sequence = n
	return nil
}

// checkText bounds a text field. PostgreSQL cannot store NUL.
func checkText(field, s string, limit int) error {
	if utf8.RuneCountInString(s) > limit {
		return invalid("%s: longer than %d characters", field, limit)
	}
	if strings.ContainsRune(s, 0) {
		return invalid("%s: the character U+0000 cannot be stored", field)
	}
	return nil
}

// checkName is checkText for a name, which must not be empty. It returns the name trimmed.
func checkName(s string) (string, error) {
	s = strings.TrimSpace(s)
	if s == "" {
		return "", invalid("name is required")
	}
	return s, checkText("name", s, 200)
}

func checkTools(names []string) error {
	if len(names) > 256 {
		return invalid("tools: more than 256 names")
	}
	for _, n := range names {
		if n == "" || len(n) > 128 {
			return invalid("tools: a name is 1 to 128 characters")
		}
	}
	return nil
}

// StorePage is the query of a list that the gateway's own store keeps, oldest first.
type StorePage struct {
	Cursor storeCursor `query:"cursor" doc:"next_cursor of the previous page."`
	Limit  int         `query:"limit" minimum:"1" maximum:"100" default:"20"`
}

// storeCursor is the position of a page's last item.
type storeCursor struct{ store.Position }

// UnmarshalText implements encoding.TextUnmarshaler.
func (c *storeCursor) UnmarshalText(text []byte) error {
	at, item, _ := strings.Cut(string(text), "~")
	t, err1 := time.Parse(time.RFC3339Nano, at)
	u, err2 := uuid.Parse(item)
	if err1 != nil || err2 != nil {
		return errors.New(wantCursor)
	}
	c.Position = store.Position{CreatedAt: t, ID: u}
	return nil
}

const wantCursor = "unknown: send the next_cursor of the previous page"

// page requests one item more than is shown: its presence means that another page follows.
func (p StorePage) page() store.Page { return store.Page{After: p.Cursor.Position, Limit: p.Limit + 1} }

// cut removes the extra item and returns the cursor of the next page, nil at the end.
func cut[T interface{ Position() store.Position }](p StorePage, items []T) ([]T, *string) {
	if len(items) <= p.Limit {
		return items, nil
	}
	items = items[:p.Limit]
	last := items[len(items)-1].Position()
	return items, new(timeStamp(last.CreatedAt) + "~" + last.ID.String())
}

// ServicePage is the query of a list that a service pages.
type ServicePage struct {
	Cursor string `query:"cursor" maxLength:"500" doc:"next_cursor of the previous page."`
	Limit  int32  `query:"limit" minimum:"1" maximum:"100" default:"20"`
}

// SlicePage is the query of a list that a service returns as a whole.
type SlicePage struct {
	Cursor string `query:"cursor" maxLength:"200" doc:"next_cursor of the previous page."`
	Limit  int    `query:"limit" minimum:"1" maximum:"100" default:"20"`
}

// pageOf returns a page of a whole list, ordered by its items' unique keys, and the cursor of
// the next page, nil at the end.
func pageOf[T any](p SlicePage, all []T, key func(T) string) ([]T, *string) {
	all = slices.DeleteFunc(slices.Clone(all), func(v T) bool { return key(v) <= p.Cursor })
	slices.SortFunc(all, func(a, b T) int { return strings.Compare(key(a), key(b)) })
	if len(all) <= p.Limit {
		return all, nil
	}
	return all[:p.Limit], new(key(all[p.Limit-1]))
}
