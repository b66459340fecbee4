package yjs_test

import (
	"bytes"
	"errors"
	"sync"
	"testing"

	"signalbox.dev/pkg/yjs"
)

// tight are limits that keep time and memory small for every input.
var tight = yjs.Limits{MaxStructs: 20_000, MaxClients: 1000, MaxValues: 20_000, MaxPending: 1 << 20, MaxScan: 1_000_000}

// fuzzBase is the state of a document with content of every kind.
var fuzzBase = sync.OnceValue(func() []byte {
	replicas, _ := write(5, 30)
	return replicas[0].EncodeStateAsUpdate(nil)
})

func seedUpdates(f *testing.F, v2 bool) {
	for seed := range uint64(12) {
		replicas, updates := write(seed+77, 25)
		if len(updates) > 0 {
			f.Add(updates[len(updates)-1])
		}
		if v2 {
			f.Add(replicas[0].EncodeStateAsUpdateV2(nil))
		} else {
			f.Add(replicas[0].EncodeStateAsUpdate(nil))
		}
	}
	f.Add([]byte{0, 0})
}

// fuzzApply applies bytes to a document with content, and checks that the document stays valid and
// that its state loads into the same content.
func fuzzApply(t *testing.T, update []byte, v2 bool) {
	d := yjs.New(yjs.Options{ClientID: 7, Limits: tight})
	check(d.ApplyUpdate(fuzzBase(), nil))
	open(d)
	before := d.EncodeStateAsUpdate(nil)
	apply := d.ApplyUpdate
	if v2 {
		apply = d.ApplyUpdateV2
	}
	err := apply(update, nil)
	switch {
	case errors.Is(err, yjs.ErrMalformed):
		if !bytes.Equal(before, d.EncodeStateAsUpdate(nil)) {
			t.Errorf("a malformed update changed the document")
		}
	case err != nil && !errors.Is(err, yjs.ErrBudget):
		t.Errorf("apply: unexpected error %v", err)
	}
	d.Text("t").Insert(1, "after")
	if err := d.XMLFragment("x").Push(yjs.NewXMLElement("p")); err != nil {
		t.Error(err)
	}
	for _, v2 := range []bool{false, true} {
		if err := sound(d, v2); err != nil {
			t.Error(err)
		}
	}
}

func FuzzApplyUpdate(f *testing.F) {
	seedUpdates(f, false)
	f.Fuzz(func(t *testing.T, update []byte) { fuzzApply(t, update, false) })
}

func FuzzApplyUpdateV2(f *testing.F) {
	seedUpdates(f, true)
	f.Fuzz(func(t *testing.T, update []byte) { fuzzApply(t, update, true) })
}

// FuzzFree runs the functions that work without a document.
func FuzzFree(f *testing.F) {
	seedUpdates(f, false)
	f.Fuzz(func(t *testing.T, update []byte) {
		state := fuzzBase()
		sv, err := yjs.StateVectorFromUpdate(state)
		check(err)
		if merged, err := yjs.MergeUpdates([][]byte{update, state, update}); err == nil {
			if _, err := yjs.MergeUpdates([][]byte{merged, merged}); err != nil {
				t.Errorf("merging the merged update: %v", err)
			}
			if _, err := yjs.DiffUpdate(merged, sv); err != nil {
				t.Errorf("diff of the merged update: %v", err)
			}
		}
		state2, err := yjs.ConvertV1ToV2(state)
		check(err)
		_, _ = yjs.MergeUpdatesV2([][]byte{update, state2})
		if v2, err := yjs.ConvertV1ToV2(update); err == nil {
			if _, err := yjs.ConvertV2ToV1(v2); err != nil {
				t.Errorf("converting back: %v", err)
			}
		}
		_, _ = yjs.ConvertV2ToV1(update)
		_, _ = yjs.StateVectorFromUpdate(update)
		_, _ = yjs.StateVectorFromUpdateV2(update)
	})
}

// FuzzSmall decodes state vectors, snapshots and positions.
func FuzzSmall(f *testing.F) {
	d := yjs.New(yjs.Options{ClientID: 1})
	d.Text("t").Insert(0, "hello")
	d.Text("t").Delete(1, 2)
	p, err := d.RelativePosition(d.Text("t"), 2, 0)
	check(err)
	for _, seed := range [][]byte{d.StateVector().Encode(), d.Snapshot().Encode(), d.Snapshot().EncodeV2(), p.Encode()} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if sv, err := yjs.DecodeStateVector(b); err == nil {
			d.EncodeStateAsUpdate(sv)
		}
		if s, err := yjs.DecodeSnapshot(b); err == nil {
			if again, err := yjs.DecodeSnapshot(s.Encode()); err != nil || !again.Equal(s) {
				t.Errorf("the snapshot changed: %v", err)
			}
			d.Text("t").DeltaAt(s)
		}
		_, _ = yjs.DecodeSnapshotV2(b)
		if p, err := yjs.DecodeRelativePosition(b); err == nil {
			d.AbsolutePosition(p)
			if again, err := yjs.DecodeRelativePosition(p.Encode()); err != nil || !bytes.Equal(again.Encode(), p.Encode()) {
				t.Errorf("the position changed: %v", err)
			}
		}
	})
}
