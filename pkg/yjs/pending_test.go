package yjs_test

import (
	"encoding/binary"
	"errors"
	"strings"
	"testing"

	"signalbox.dev/pkg/yjs"
)

// gap returns an update of n types that client 1 appended to an array, without the first one, on
// which all depend. In encoding v2 they take a few bytes.
func gap(n int) []byte {
	b := binary.AppendUvarint([]byte{1}, uint64(n))
	b = append(b, 1, 1)
	for i := range n {
		b = binary.AppendUvarint(append(b, 0x87, 1), uint64(i))
		b = append(b, 0)
	}
	return append(b, 0)
}

// gapHead returns the missing type of a gap.
var gapHead = []byte{1, 1, 1, 0, 7, 1, 1, 'a', 0, 0}

// TestPendingStructsAreInStates makes two updates pending, one denser than untrusted updates may be: both
// are in the state, also of a replica that loaded it, and are integrated when possible.
func TestPendingStructsAreInStates(t *testing.T) {
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

// TestPendingStructsAreNotRefused applies an update on which pending structs over the limits depend.
func TestPendingStructsAreNotRefused(t *testing.T) {
	t.Parallel()
	d := yjs.New(yjs.Options{ClientID: 3})
	check(d.ApplyUpdate(gap(40_000), nil))
	d.SetLimits(yjs.Limits{MaxStructs: 10, MaxClients: 1, MaxValues: 1, MaxPending: 1})
	check(d.ApplyUpdate(gapHead, nil))
	is(t, "gap", d.StateVector()[1], uint32(40_001))
}

// TestPendingStructsUseABudget makes structs pending that take more steps than the budget: the update
// with their dependency is accepted, and later updates integrate them step by step.
func TestPendingStructsUseABudget(t *testing.T) {
	t.Parallel()
	base := yjs.New(yjs.Options{ClientID: 1})
	base.Text("t").Insert(0, strings.Repeat("ab", 2000))
	sv := base.StateVector()
	first := base.EncodeStateAsUpdate(nil)
	base.Text("t").Insert(0, "z")
	missing := base.EncodeStateAsUpdate(sv)
	// Each struct of client 2 is between the first two characters, and finding its place scans
	// all previous ones; the first one depends on the z.
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
		t.Errorf("Contents() = %v, want the previous %v", s, structs)
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

// TestPendingDeletionsStay checks that pending deletions stay when later ones exceed the limits.
func TestPendingDeletionsStay(t *testing.T) {
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
