package hashchain_test

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"signalbox.dev/pkg/hashchain"
	"signalbox.dev/pkg/id"
)

// chain returns rows as the database writes them, and their head.
func chain(n int) ([]hashchain.Row, *hashchain.Head) {
	ws, member := id.New[id.Workspace](), id.New[id.Member]()
	hash := make([]byte, sha256.Size)
	var rows []hashchain.Row
	for i := range n {
		r := hashchain.Row{
			Workspace: ws, Sequence: int64(i + 1), ID: uuid.New(), At: time.UnixMicro(1_700_000_000_000_000 + int64(i)),
			Fields: []string{"changed", member.String(), "enabled"},
		}
		link(&r, hash)
		hash = r.Hash
		rows = append(rows, r)
	}
	return rows, &hashchain.Head{Workspace: ws, Sequence: int64(n), Hash: hash}
}

// setField replaces a field; rows share none.
func setField(r *hashchain.Row, n int, to string) {
	r.Fields = slices.Clone(r.Fields)
	r.Fields[n] = to
}

func link(r *hashchain.Row, prev []byte) {
	r.Prev = prev
	r.Hash = r.Sum()
}

func verify(rows []hashchain.Row, head *hashchain.Head, expected ...hashchain.Head) string {
	c := hashchain.New(id.Workspace{})
	for _, h := range expected {
		c.Expect(h)
	}
	for _, r := range rows {
		c.Add(r)
	}
	var out []string
	for _, p := range c.End(head) {
		out = append(out, fmt.Sprintf("%s %d", p.Kind, p.Sequence))
	}
	return strings.Join(out, ", ")
}

func TestChain(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		do   func(rows []hashchain.Row, head *hashchain.Head) ([]hashchain.Row, *hashchain.Head)
		want string
	}{
		{"whole", func(r []hashchain.Row, h *hashchain.Head) ([]hashchain.Row, *hashchain.Head) { return r, h }, ""},
		{"a field changed", func(r []hashchain.Row, h *hashchain.Head) ([]hashchain.Row, *hashchain.Head) {
			setField(&r[4], 2, "disabled")
			return r, h
		}, "changed 5"},
		{"a member taken out", func(r []hashchain.Row, h *hashchain.Head) ([]hashchain.Row, *hashchain.Head) {
			setField(&r[4], 1, "")
			return r, h
		}, "changed 5"},
		{"a hash changed", func(r []hashchain.Row, h *hashchain.Head) ([]hashchain.Row, *hashchain.Head) {
			r[4].Hash = make([]byte, 32)
			return r, h
		}, "changed 5"},
		{"the first changed with its hash", func(r []hashchain.Row, h *hashchain.Head) ([]hashchain.Row, *hashchain.Head) {
			setField(&r[0], 2, "x")
			link(&r[0], r[0].Prev)
			return r, h
		}, "replaced 1"},
		{"one changed with its hash", func(r []hashchain.Row, h *hashchain.Head) ([]hashchain.Row, *hashchain.Head) {
			setField(&r[4], 2, "x")
			link(&r[4], r[4].Prev)
			return r, h
		}, "replaced 5"},
		{"one in the place of another", func(r []hashchain.Row, h *hashchain.Head) ([]hashchain.Row, *hashchain.Head) {
			r[4].ID = uuid.New()
			link(&r[4], make([]byte, 32))
			return r, h
		}, "replaced 5"},
		{"the last changed with its hash", func(r []hashchain.Row, h *hashchain.Head) ([]hashchain.Row, *hashchain.Head) {
			setField(&r[9], 2, "x")
			link(&r[9], r[9].Prev)
			return r, h
		}, "replaced 10"},
		{"the first removed", func(r []hashchain.Row, h *hashchain.Head) ([]hashchain.Row, *hashchain.Head) { return r[1:], h }, "removed 1"},
		{"some removed", func(r []hashchain.Row, h *hashchain.Head) ([]hashchain.Row, *hashchain.Head) {
			return slices.Delete(r, 3, 6), h
		}, "removed 4"},
		{"the last removed", func(r []hashchain.Row, h *hashchain.Head) ([]hashchain.Row, *hashchain.Head) { return r[:9], h }, "removed 10"},
		{"all removed", func(_ []hashchain.Row, h *hashchain.Head) ([]hashchain.Row, *hashchain.Head) { return nil, h }, "removed 1"},
		{"the head removed", func(r []hashchain.Row, _ *hashchain.Head) ([]hashchain.Row, *hashchain.Head) { return r, nil }, "removed 10"},
		{"one removed and the rest moved up", func(r []hashchain.Row, h *hashchain.Head) ([]hashchain.Row, *hashchain.Head) {
			r = slices.Delete(r, 7, 8)
			for i := 7; i < len(r); i++ {
				r[i].Sequence--
			}
			return r, h
		}, "moved 8, moved 9, removed 10"},
		{"one inserted and the rest moved down", func(r []hashchain.Row, h *hashchain.Head) ([]hashchain.Row, *hashchain.Head) {
			x := r[8]
			x.ID = uuid.New()
			link(&x, r[7].Hash)
			r = slices.Insert(r, 8, x)
			for i := 9; i < len(r); i++ {
				r[i].Sequence++
			}
			return r, h
		}, "inserted 9, moved 10, moved 11"},
		{"two exchanged", func(r []hashchain.Row, h *hashchain.Head) ([]hashchain.Row, *hashchain.Head) {
			r[3], r[4] = r[4], r[3]
			r[3].Sequence, r[4].Sequence = 4, 5
			return r, h
		}, "moved 4, moved 5"},
		{"a number twice", func(r []hashchain.Row, h *hashchain.Head) ([]hashchain.Row, *hashchain.Head) {
			x := r[4]
			x.ID = uuid.New()
			return slices.Insert(r, 5, x), h
		}, "inserted 5"},
	} {
		rows, head := chain(10)
		rows, head = tt.do(rows, head)
		if got := verify(rows, head); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}

func TestRewrittenChain(t *testing.T) {
	t.Parallel()
	rows, head := chain(10)
	kept := hashchain.Head{Sequence: 7, Hash: rows[6].Hash}
	if got := verify(rows, head, kept); got != "" {
		t.Errorf("through a head of before: %q, want nothing", got)
	}
	// Somebody writes row 5 and all that follow anew.
	hash := rows[3].Hash
	for i := 4; i < len(rows); i++ {
		setField(&rows[i], 2, "x")
		link(&rows[i], hash)
		hash = rows[i].Hash
	}
	head.Hash = hash
	if got := verify(rows, head); got != "" {
		t.Errorf("without the head of before: %q, want nothing: it is a whole chain", got)
	}
	if got, want := verify(rows, head, kept), "rewound 7"; got != want {
		t.Errorf("with the head of before: %q, want %q", got, want)
	}
	if got, want := verify(rows[:5], &hashchain.Head{Sequence: 5, Hash: rows[4].Hash}, kept), "rewound 7"; got != want {
		t.Errorf("cut before the head of before: %q, want %q", got, want)
	}
}
