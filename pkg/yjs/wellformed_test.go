package yjs_test

import (
	"encoding/hex"
	"testing"

	"signalbox.dev/pkg/yjs"
)

// TestOverlapNamesAnotherParent applies a struct that overlaps a known one but names another
// parent. These updates once made a map own an item of another list, and freeing the map crashed.
func TestOverlapNamesAnotherParent(t *testing.T) {
	t.Parallel()
	d := yjs.New(yjs.Options{})
	for i, s := range []string{
		"01020100070101610128000100016b017d0500", // a: [{k: 5}]
		"0101020008010162017d0100",               // b: [1], client 2 at clock 0
		"0101020028000100016b027d017d0200",       // client 2 at clock 0 again: k: 1, 2 in the map
		"000101010001",                           // the map is deleted
	} {
		u, err := hex.DecodeString(s)
		check(err)
		if err := d.ApplyUpdate(u, nil); err != nil {
			t.Fatalf("update %d: %v", i, err)
		}
		e := yjs.New(yjs.Options{})
		check(e.ApplyUpdate(d.EncodeStateAsUpdate(nil), nil))
		check(e.ApplyUpdateV2(d.EncodeStateAsUpdateV2(nil), nil))
		for _, name := range []string{"a", "b"} {
			is(t, name, string(yjs.AppendJSON(nil, yjs.ToJSON(e.Array(name)))), string(yjs.AppendJSON(nil, yjs.ToJSON(d.Array(name)))))
		}
	}
	is(t, "a", d.Array("a").Len(), 0)
	is(t, "b", d.Array("b").Len(), 2)
}

// TestDeletePassesOverValues deletes around values in a text, which Delete skips: the search
// markers do not count them as deleted.
func TestDeletePassesOverValues(t *testing.T) {
	t.Parallel()
	d := yjs.New(yjs.Options{})
	text := d.Text("t")
	for _, s := range []string{
		"01030100" + "04010174026162" + "880101017d01" + "8401020463646566" + "00", // ab, 1, cdef
		"01010200" + "c801020103017d02" + "00",                                     // 2 after the 1
	} {
		u, err := hex.DecodeString(s)
		check(err)
		check(d.ApplyUpdate(u, nil))
	}
	text.Insert(3, "x") // a marker before the 2
	text.Delete(0, 4)
	check(yjs.Check(d))
	text.Insert(5, "z")
	is(t, "text", text.String(), "defz")
}
