package transform

import (
	"cmp"
	"errors"
	"io"
	"slices"
)

// Edit is one change: at an index of a body, so many bytes are taken out and others
// put in their place.
type Edit struct {
	At, Remove int
	Insert     []byte
}

const maxEdits = 1 << 16

// ErrTooMany is for a request that would need more edits than a conversation has
// reason for.
var ErrTooMany = errors.New("the request names more tools, or has more words to be replaced, than can be translated (65536)")

// Edits are changes of one body in the order of their places, which do not overlap.
type Edits []Edit

// Size returns how long a body of n bytes is with the edits made.
func (e Edits) Size(n int) int {
	for i := range e {
		n += len(e[i].Insert) - e[i].Remove
	}
	return n
}

// Body returns a reader of body with the edits made. Neither is copied: they must not
// change while it is read. Readers of the same body are independent.
func (e Edits) Body(body []byte) io.Reader { return &reader{body: body, edits: e} }

func (e Edits) sort() { slices.SortFunc(e, func(a, b Edit) int { return cmp.Compare(a.At, b.At) }) }

// reader reads a body with edits made. It has no WriteTo: that would write every small
// piece by itself.
type reader struct {
	body   []byte
	edits  Edits
	at     int    // in body
	insert []byte // of the edit under way, what is left
}

// Read implements io.Reader.
func (r *reader) Read(p []byte) (int, error) {
	n := 0
	for n < len(p) {
		if len(r.insert) > 0 {
			m := copy(p[n:], r.insert)
			r.insert = r.insert[m:]
			n += m
			continue
		}
		end := len(r.body)
		if len(r.edits) > 0 {
			end = r.edits[0].At
		}
		if r.at < end {
			m := copy(p[n:], r.body[r.at:end])
			r.at += m
			n += m
			continue
		}
		if len(r.edits) == 0 {
			if n == 0 {
				return 0, io.EOF
			}
			break
		}
		r.insert = r.edits[0].Insert
		r.at += r.edits[0].Remove
		r.edits = r.edits[1:]
	}
	return n, nil
}
