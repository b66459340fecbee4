package hashchain

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/google/uuid"

	"signalbox.dev/pkg/id"
)

// Row is a row of an audit.
type Row struct {
	Workspace id.Workspace
	Sequence  int64
	ID        uuid.UUID
	At        time.Time
	Fields    []string // the others, in the order in which they are hashed
	Prev      []byte
	Hash      []byte
}

// Sum returns the hash that the row should have.
func (r Row) Sum() []byte { return r.sumAt(r.Sequence) }

// sumAt hashes each field after its length, so that no two rows give the same bytes.
func (r Row) sumAt(sequence int64) []byte {
	b := bytes.Clone(r.Prev)
	for _, f := range append([]string{
		r.Workspace.String(), strconv.FormatInt(sequence, 10), r.ID.String(), strconv.FormatInt(r.At.UnixMicro(), 10),
	}, r.Fields...) {
		b = binary.BigEndian.AppendUint32(b, uint32(len(f)))
		b = append(b, f...)
	}
	sum := sha256.Sum256(b)
	return sum[:]
}

// Head is the end of a workspace's chain. Kept where nobody who can write the database can change
// it, it reveals a chain that was computed anew.
type Head struct {
	Audit     string       `json:"audit,omitempty"`       // which of several; empty if only one was verified
	Workspace id.Workspace `json:"workspace_id,omitzero"` // zero for the operator's
	Sequence  int64        `json:"sequence"`
	Hash      Hash         `json:"hash"`
}

// Hash is a row's hash, in hexadecimal digits as text.
type Hash []byte

// MarshalText implements encoding.TextMarshaler.
func (h Hash) MarshalText() ([]byte, error) { return hex.AppendEncode(nil, h), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (h *Hash) UnmarshalText(text []byte) (err error) {
	*h, err = hex.AppendDecode(nil, text)
	return err
}

// Kind is a kind of problem in a chain.
type Kind string

// The kinds.
const (
	Changed  Kind = "changed"  // the row's fields are not those that were written
	Removed  Kind = "removed"  // rows are missing
	Inserted Kind = "inserted" // the row was not written by the product
	Moved    Kind = "moved"    // the row was written with another sequence number
	Replaced Kind = "replaced" // the row is another one, with a hash of its own
	Rewound  Kind = "rewound"  // the chain is not the one that was verified before
	// CutOff is the beginning of a row in a file whose writer died. Nothing is wrong: what the
	// row was about was not done.
	CutOff Kind = "cut off"
)

// Problem is something wrong with a chain, described for people.
type Problem struct {
	Audit     string       `json:"audit,omitempty"` // see Head
	Workspace id.Workspace `json:"workspace_id,omitzero"`
	// Sequence is the row's number; the first one's if several are missing.
	Sequence int64     `json:"sequence"`
	ID       uuid.UUID `json:"row_id,omitzero"` // the row's; zero if the row is missing
	Kind     Kind      `json:"kind"`
	Message  string    `json:"message"`
}

// maxKept bounds the changed rows that are kept to find out whether they were moved.
const maxKept = 1000

// mark is what is kept of a row until the end.
type mark struct {
	sequence int64
	id       uuid.UUID
	whole    bool // its hash is that of its fields
	follows  bool // it was written after the row before it, unless that is missing
}

// Chain verifies one workspace's rows: add all of them in their order; End returns what is wrong.
// It keeps some bytes of each row.
type Chain struct {
	workspace id.Workspace
	sequence  int64  // of the last row
	hash      []byte // of the last row
	marks     []mark
	changed   []Row
	expected  map[int64][]byte
	problems  []Problem
}

// New returns the verification of a workspace's chain.
func New(ws id.Workspace) *Chain {
	return &Chain{workspace: ws, hash: make([]byte, sha256.Size), expected: map[int64][]byte{}}
}

// Expect requires the chain to contain a head that it ended with before. It is called before Add.
func (c *Chain) Expect(h Head) { c.expected[h.Sequence] = h.Hash }

// Rows returns how many rows were added.
func (c *Chain) Rows() int { return len(c.marks) }

// Add adds the next row.
func (c *Chain) Add(r Row) {
	gap := r.Sequence > c.sequence+1
	switch {
	case r.Sequence <= c.sequence:
		c.report(Inserted, r.Sequence, r.ID, "there is another row %d", r.Sequence)
		return
	case gap:
		c.missing(c.sequence+1, r.Sequence-1)
	}
	m := mark{sequence: r.Sequence, id: r.ID, whole: bytes.Equal(r.Sum(), r.Hash), follows: gap || bytes.Equal(r.Prev, c.hash)}
	if !m.whole && len(c.changed) < maxKept {
		c.changed = append(c.changed, r)
	}
	if hash, ok := c.expected[r.Sequence]; ok {
		delete(c.expected, r.Sequence)
		if !bytes.Equal(hash, r.Hash) {
			c.report(Rewound, r.Sequence, r.ID, "row %d does not have the hash that an earlier verification recorded", r.Sequence)
		}
	}
	c.marks = append(c.marks, m)
	c.sequence, c.hash = r.Sequence, r.Hash
}

// Beyond adds a row that is stored after the end of the chain.
func (c *Chain) Beyond(r Row) {
	c.report(Inserted, r.Sequence, r.ID, "row %d comes after the end of the chain", r.Sequence)
}

// End takes the head, nil if there is none, and returns what is wrong, in the order of the rows.
func (c *Chain) End(h *Head) []Problem {
	switch {
	case h == nil && len(c.marks) > 0:
		c.report(Removed, c.sequence, uuid.Nil, "the head of the chain is missing: rows after %d may have been removed", c.sequence)
	case h != nil && h.Sequence > c.sequence:
		c.missing(c.sequence+1, h.Sequence)
	}
	for sequence := range c.expected {
		if sequence > c.sequence {
			c.report(Rewound, sequence, uuid.Nil, "row %d was present in an earlier verification", sequence)
		}
	}
	c.blame(h)
	slices.SortStableFunc(c.problems, func(a, b Problem) int { return cmp.Compare(a.Sequence, b.Sequence) })
	return c.problems
}

// blame reports the rows that are not those that were written. If a row is whole and the next one
// does not follow it, its hash has changed, unless the next one fits neither of its neighbours and
// is itself foreign.
func (c *Chain) blame(h *Head) {
	for i, m := range c.marks {
		last := i == len(c.marks)-1
		followed := last || c.marks[i+1].follows
		if last && h != nil && h.Sequence == m.sequence {
			followed = bytes.Equal(h.Hash, c.hash)
		}
		foreignNext := !last && c.foreign(i+1, h)
		switch {
		case !m.whole:
			c.change(m)
		case !m.follows && (!followed || i == 0):
			c.report(Replaced, m.sequence, m.id, "row %d fits neither the row before nor the one after it: it replaced another", m.sequence)
		case !followed && (last || c.marks[i+1].whole && !foreignNext):
			c.report(Replaced, m.sequence, m.id, "row %d is not the one that row %d was written after: it was changed or replaced, together with its hash", m.sequence, m.sequence+1)
		}
	}
}

// foreign reports whether a row fits neither of its neighbours.
func (c *Chain) foreign(i int, h *Head) bool {
	m := c.marks[i]
	if m.follows {
		return false
	}
	if i+1 < len(c.marks) {
		return !c.marks[i+1].follows
	}
	return h != nil && (h.Sequence != m.sequence || !bytes.Equal(h.Hash, c.hash))
}

// maxMove is how many numbers away the former place of a moved row is searched.
const maxMove = 100

// change reports a row whose hash is not that of its fields: as moved, if the hash fits another
// number. A whole row that has that number now was inserted.
func (c *Chain) change(m mark) {
	i := slices.IndexFunc(c.changed, func(r Row) bool { return r.Sequence == m.sequence && r.ID == m.id })
	if i < 0 {
		c.report(Changed, m.sequence, m.id, "row %d was changed after it was written", m.sequence)
		return
	}
	r := &c.changed[i]
	for was := m.sequence - maxMove; was <= m.sequence+maxMove; was++ {
		if !bytes.Equal(r.sumAt(was), r.Hash) {
			continue
		}
		c.report(Moved, m.sequence, m.id, "row %d was written as row %d", m.sequence, was)
		k, found := slices.BinarySearchFunc(c.marks, was, func(m mark, n int64) int { return cmp.Compare(m.sequence, n) })
		if found && c.marks[k].whole {
			c.report(Inserted, was, c.marks[k].id, "row %d replaced the one that was written there", was)
		}
		return
	}
	c.report(Changed, m.sequence, m.id, "row %d was changed after it was written", m.sequence)
}

func (c *Chain) missing(from, to int64) {
	if from == to {
		c.report(Removed, from, uuid.Nil, "row %d is missing", from)
		return
	}
	c.report(Removed, from, uuid.Nil, "rows %d to %d are missing", from, to)
}

func (c *Chain) report(k Kind, sequence int64, row uuid.UUID, format string, args ...any) {
	c.problems = append(c.problems, Problem{Workspace: c.workspace, Sequence: sequence, ID: row, Kind: k, Message: fmt.Sprintf(format, args...)})
}
