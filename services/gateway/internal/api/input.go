package api

import (
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"

	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"

	"signalbox.dev/services/gateway/internal/store"
)

// parseID reads an id from outside; name is what the caller knows it as.
func parseID[T id.Kind](name, s string) (T, error) {
	v, err := id.Parse[T](s)
	if err != nil {
		return v, invalid("%s: %s", name, err)
	}
	return v, nil
}

// Idempotent is the header that makes a write repeatable which would otherwise be
// done twice.
type Idempotent struct {
	Key string `header:"Idempotency-Key" doc:"The same key again gives the first call's result and changes nothing more. 255 printable characters at most."`
}

// key returns the key, checked; empty for none.
func (i Idempotent) key() (string, error) { return checkKey("Idempotency-Key", i.Key) }

// Repeatable is the same header of a write that can be repeated as it is.
type Repeatable struct {
	Key string `header:"Idempotency-Key" doc:"Taken and not needed: the call can be repeated as it is. What is deleted is not there the second time: 404."`
}

// Begun is the same header of a write that begins a sign-in.
type Begun struct {
	Key string `header:"Idempotency-Key" doc:"The same key again gives the sign-in that the first call has begun, as long as it is open; a device gets new codes, and those before are of no use. 255 printable characters at most."`
}

// id returns the id of the sign-in that the key stands for, empty for none.
func (b Begun) id(a identity.Actor, kind string) (string, error) {
	key, err := checkKey("Idempotency-Key", b.Key)
	return operationKey(a, kind, key), err
}

// check refuses a key that would be refused elsewhere.
func (r Repeatable) check() error {
	_, err := checkKey("Idempotency-Key", r.Key)
	return err
}

func checkKey(name, key string) (string, error) {
	if len(key) > 255 {
		return "", invalid("%s: longer than 255 characters", name)
	}
	for i := range len(key) {
		if key[i] < ' ' || key[i] > '~' {
			return "", invalid("%s: only printable ASCII characters are taken", name)
		}
	}
	return key, nil
}

// operations is the space of operation ids that are made of idempotency keys.
const operations = "6f2a7a30-5b8e-4b0a-9a4e-0b6f1d1c7a52"

// operation derives an operation's id from what an actor's key stands for. Without
// a key it is zero: the call is not repeatable.
func operation(a identity.Actor, kind, key string) id.Operation {
	if key == "" {
		return id.Operation{}
	}
	return id.Derive(uuid.MustParse(operations), kind, a.Workspace.String(), a.Member.String(), key)
}

// operationKey is operation as the services take it.
func operationKey(a identity.Actor, kind, key string) string {
	if key == "" {
		return ""
	}
	return operation(a, kind, key).String()
}

// checkText bounds a text field. Postgres takes no NUL.
func checkText(field, s string, limit int) error {
	if utf8.RuneCountInString(s) > limit {
		return invalid("%s: longer than %d characters", field, limit)
	}
	if strings.ContainsRune(s, 0) {
		return invalid("%s: the character U+0000 cannot be stored", field)
	}
	return nil
}

// checkName is checkText for a name, which must not be empty; it returns it trimmed.
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

// PageInput is the query of a list that is ordered by creation.
type PageInput struct {
	Cursor string `query:"cursor" doc:"next_cursor of the page before."`
	Limit  int    `query:"limit" minimum:"1" maximum:"100" default:"20"`
}

// page asks for one item more than is shown: that there is one means another page.
func (p PageInput) page() (store.Page, error) {
	out := store.Page{Limit: p.Limit + 1}
	if p.Cursor == "" {
		return out, nil
	}
	at, item, _ := strings.Cut(p.Cursor, "~")
	t, err1 := time.Parse(time.RFC3339Nano, at)
	u, err2 := uuid.Parse(item)
	if err1 != nil || err2 != nil {
		return out, invalid("cursor: not one of ours: send the next_cursor of the page before")
	}
	out.After, out.ID = t, u
	return out, nil
}

// cut takes the extra item off and returns the cursor of the next page, nil at the end.
func cut[T any](p PageInput, items []T, at func(T) (time.Time, uuid.UUID)) ([]T, *string) {
	if len(items) <= p.Limit {
		return items, nil
	}
	items = items[:p.Limit]
	t, u := at(items[len(items)-1])
	return items, new(timeStamp(t) + "~" + u.String())
}
