package transform

import (
	"cmp"
	"errors"
	"io"
	"slices"
)

// Edit is one change to a body: at an index, remove some bytes and insert others.
type Edit struct {
	At, Remove int
	Insert     []byte
}

const maxEdits = 1 << 16

// ErrTooMany refuses a request that needs more edits than any conversation should.
var ErrTooMany = errors.New("the request names more tools, or has more words to replace, than can be translated (65536)")

// Edits are changes to one body, sorted by place and without overlap.
type Edits []Edit

// Size returns the edited length of a body of n bytes.
func (e Edits) Size(n int) int {
	for i := range e {
		n += len(e[i].Insert) - e[i].Remove
	}
	return n
}

// Apply returns an edited copy of body.
func (e Edits) Apply(body []byte) []byte {
	out := make([]byte, 0, e.Size(len(body)))
	at := 0
	for _, edit := range e {
		out = append(append(out, body[at:edit.At]...), edit.Insert...)
		at = edit.At + edit.Remove
	}
	return append(out, body[at:]...)
}

// Reader returns a reader of the edited body that copies nothing. Body and edits must not
// change while it is read. Readers of the same body are independent.
func (e Edits) Reader(body []byte) io.Reader { return &reader{body: body, edits: e} }

func (e Edits) sort() { slices.SortFunc(e, func(a, b Edit) int { return cmp.Compare(a.At, b.At) }) }

// reader has no WriteTo: it would write every small piece separately.
type reader struct {
	body   []byte
	edits  Edits
	at     int    // in body
	insert []byte // the rest of the current edit's
}

// Read implements io.Reader.
func (r *reader) Read(p []byte) (int, error) {
	n := 0
	for n < len(p) {
		end := len(r.body)
		if len(r.edits) > 0 {
			end = r.edits[0].At
		}
		switch {
		case len(r.insert) > 0:
			m := copy(p[n:], r.insert)
			r.insert = r.insert[m:]
			n += m
		case r.at < end:
			m := copy(p[n:], r.body[r.at:end])
			r.at += m
			n += m
		case len(r.edits) > 0:
			r.insert = r.edits[0].Insert
			r.at += r.edits[0].Remove
			r.edits = r.edits[1:]
		case n == 0:
			return 0, io.EOF
		default:
			return n, nil
		}
	}
	return n, nil
}
