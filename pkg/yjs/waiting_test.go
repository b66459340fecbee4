package yjs_test

import (
	"encoding/binary"
	"errors"
	"strings"
	"testing"

	"signalbox.dev/pkg/yjs"
)

// gap is an update of n types that client 1 appended to an array, without the first one:
// all wait for it. In encoding v2 they are a few bytes.
func gap(n int) []byte {
	b := binary.AppendUvarint([]byte{1}, uint64(n))
	b = append(b, 1, 1)
	for i := range n {
		b = binary.AppendUvarint(append(b, 0x87, 1), uint64(i))
		b = append(b, 0)
	}
	return append(b, 0)
}

// gapHead is what a gap waits for.
var gapHead = []byte{1, 1, 1, 0, 7, 1, 1, 'a', 0, 0}

// TestWaitingIsInStates has two updates wait of which one is denser than a stranger's
// may be: both are in the states, also of who loaded one, and go in when they can.
func TestWaitingIsInStates(t *testing.T) {
	t.Parallel()
	const n = 40_000
	source := yjs.New(yjs.Options{ClientID: 2})
	var us [][]byte
	source.OnUpdate(func(u *yjs.Update) { us = append(us, u.V1()) })
	source.Text("t").Insert(0, "one ")
	source.Text("t").Insert(4, "two")
	for _, order := range [][][]byte{{gap(n), us[1]}, {us[1], gap(n)}} {
		d := yjs.New(yjs.Options{ClientID: 3})
		for _, u := range order {
			check(d.ApplyUpdate(u, nil))
		}
		structs, deletions := d.Contents()
		states := map[string]func(*yjs.Doc) error{
			"v1": func(e *yjs.Doc) error { return e.ApplyUpdate(d.EncodeStateAsUpdate(nil), nil) },
			"v2": func(e *yjs.Doc) error { return e.ApplyUpdateV2(d.EncodeStateAsUpdateV2(nil), nil) },
		}
		for name, load := range states {
			e := yjs.New(yjs.Options{ClientID: 4, Limits: yjs.Unlimited()})
			check(load(e))
			if s, ds := e.Contents(); !s.Equal(structs) || !ds.Equal(deletions) {
				t.Errorf("%s: contents after loading = %v, %v, want %v, %v", name, s, ds, structs, deletions)
			}
			e.SetLimits(yjs.Limits{})
			check(e.ApplyUpdate(us[0], nil))
			check(e.ApplyUpdate(gapHead, nil))
			is(t, name+": text", e.Text("t").String(), "one two")
			is(t, name+": pending", e.Pending(), false)
			is(t, name+": gap", e.StateVector()[1], uint32(n+1))
		}
	}
}

// TestWaitingIsNotRefused brings what others wait for under limits that they exceed.
func TestWaitingIsNotRefused(t *testing.T) {
	t.Parallel()
	d := yjs.New(yjs.Options{ClientID: 3})
	check(d.ApplyUpdate(gap(40_000), nil))
	d.SetLimits(yjs.Limits{MaxStructs: 10, MaxClients: 1, MaxValues: 1, MaxPending: 1})
	check(d.ApplyUpdate(gapHead, nil))
	is(t, "gap", d.StateVector()[1], uint32(40_001))
}

// TestWaitingTakesItsTime has something wait that takes more steps than there are: who
// brings what it waits for is not refused, and later updates get it in bit by bit.
func TestWaitingTakesItsTime(t *testing.T) {
	t.Parallel()
	base := yjs.New(yjs.Options{ClientID: 1})
	base.Text("t").Insert(0, strings.Repeat("ab", 2000))
	sv := base.StateVector()
	first := base.EncodeStateAsUpdate(nil)
	base.Text("t").Insert(0, "z")
	missing := base.EncodeStateAsUpdate(sv)
	// Each struct of client 2 stands between the first two characters, and its place is
	// looked for behind all those before it; the first one waits for the z.
	const n = 300
	slow := []byte{1}
	slow = binary.AppendUvarint(slow, n+1)
	slow = append(slow, 2, 0, 0x87, 1)
	slow = append(binary.AppendUvarint(slow, 4000), 0)
	for i := range n {
		slow = append(binary.AppendUvarint(append(slow, 0xc4, 1), uint64(i%2)), 1)
		slow = append(binary.AppendUvarint(slow, 3999), 1, 'x')
	}
	slow = append(slow, 0)

	d := yjs.New(yjs.Options{ClientID: 3})
	check(d.ApplyUpdate(first, nil))
	check(d.ApplyUpdate(slow, nil))
	structs, _ := d.Contents()
	d.SetLimits(yjs.Limits{MaxScan: 10_000})
	check(d.ApplyUpdate(missing, nil))
	is(t, "waits still", d.Pending(), true)
	if s, _ := d.Contents(); len(s) != len(structs) {
		t.Errorf("Contents() = %v, want what there was: %v", s, structs)
	}
	rounds := 1
	for ; d.Pending() && rounds < n; rounds++ {
		check(d.ApplyUpdate([]byte{0, 0}, nil))
	}
	is(t, "went in", d.Pending(), false)
	whole := yjs.New(yjs.Options{ClientID: 4})
	for _, u := range [][]byte{first, missing, slow} {
		check(whole.ApplyUpdate(u, nil))
	}
	is(t, "text", d.Text("t").String(), whole.Text("t").String())
}

// TestWaitingDeletionsStay has deletions wait under limits that later ones exceed.
func TestWaitingDeletionsStay(t *testing.T) {
	t.Parallel()
	d := yjs.New(yjs.Options{ClientID: 3, Limits: yjs.Limits{MaxPending: 16}})
	check(d.ApplyUpdate([]byte{0, 1, 1, 1, 0, 1}, nil))
	_, deletions := d.Contents()
	if err := d.ApplyUpdate([]byte{0, 1, 2, 2, 0, 1, 5, 1}, nil); !errors.Is(err, yjs.ErrBudget) {
		t.Errorf("ApplyUpdate = %v, want ErrBudget", err)
	}
	if _, got := d.Contents(); !got.Equal(deletions) {
		t.Errorf("deletions = %v, want %v", got, deletions)
	}
}

func is[T comparable](t *testing.T, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Errorf("%s = %v, want %v", what, got, want)
	}
}
