package yjs_test

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"testing"

	"signalbox.dev/pkg/yjs"
)

// TestClientIDs uses client ids of up to 53 bits. The updates are those of npm yjs 13.6.33 for a
// client that inserts abc and deletes the b.
func TestClientIDs(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		id     uint64
		v1, v2 string
	}{
		{1<<32 - 1, "0103ffffffff0f0004010174016181ffffffff0f000184ffffffff0f01016301ffffffff0f010101", "000006ffffffff1f010200020005040081008406037461634101010100010101030001ffffffff0f010100"},
		{1 << 32, "01038080808010000401017401618180808080100001848080808010010163018080808010010101", "000006c0808080200102000200050400810084060374616341010101000101010300018080808010010100"},
		{1<<53 - 1, "0103ffffffffffffff0f0004010174016181ffffffffffffff0f000184ffffffffffffff0f01016301ffffffffffffff0f010101", "000009ffffffffffffff1f010200020005040081008406037461634101010100010101030001ffffffffffffff0f010100"},
	} {
		d := yjs.New(yjs.Options{ClientID: tt.id})
		d.Text("t").Insert(0, "abc")
		d.Text("t").Delete(1, 1)
		v1, v2 := d.EncodeStateAsUpdate(nil), d.EncodeStateAsUpdateV2(nil)
		if hex.EncodeToString(v1) != tt.v1 || hex.EncodeToString(v2) != tt.v2 {
			t.Errorf("client %d: %x and %x, npm yjs has %s and %s", tt.id, v1, v2, tt.v1, tt.v2)
		}
		one, two := yjs.New(yjs.Options{}), yjs.New(yjs.Options{})
		check(one.ApplyUpdate(v1, nil))
		check(two.ApplyUpdateV2(v2, nil))
		for _, e := range []*yjs.Doc{one, two} {
			sv, err := yjs.DecodeStateVector(e.StateVector().Encode())
			if err != nil || len(sv) != 1 || sv[tt.id] != 3 || e.Text("t").String() != "ac" {
				t.Errorf("client %d: %q, %v, %v", tt.id, e.Text("t"), sv, err)
			}
		}
		p, err := one.RelativePosition(one.Text("t"), 1, 0)
		check(err)
		if q, err := yjs.DecodeRelativePosition(p.Encode()); err != nil || *q.Item != (yjs.ID{Client: tt.id, Clock: 2}) {
			t.Errorf("client %d: position %+v, %v", tt.id, q, err)
		}
	}
}

// TestNumbersTooLarge checks that a client or a clock that is too large makes an update malformed
// without effect, wherever it occurs. The largest valid ones are accepted.
func TestNumbersTooLarge(t *testing.T) {
	t.Parallel()
	const most = 1<<32 - 2 // the last clock, and the maximum number of clocks
	of := func(ns ...uint64) []byte {
		var b []byte
		for _, n := range ns {
			b = binary.AppendUvarint(b, n)
		}
		return b
	}
	gc := func(client, clock, length uint64) []byte { return of(1, 1, client, clock, 0, length, 0) }
	skip := func(client, clock, length uint64) []byte { return of(1, 1, client, clock, 10, length, 0) }
	origin := func(client, clock uint64) []byte {
		return append(append(of(1, 1, 7, 0), 0x84), of(client, clock, 1, 'x', 0)...)
	}
	deletion := func(client, clock, length uint64) []byte { return of(0, 1, client, 1, clock, length) }
	for name, tt := range map[string]struct {
		update []byte
		ok     bool
	}{
		"all clocks":              {gc(7, 0, most), true},
		"one clock too many":      {gc(7, 0, most+1), false},
		"a length of 53 bits":     {gc(7, 0, 1<<53-1), false},
		"a length of 64 bits":     {gc(7, 0, 1<<64-1), false},
		"the last clock":          {gc(7, most-1, 1), true},
		"beyond the last clock":   {gc(7, most-1, 2), false},
		"a clock of 33 bits":      {gc(7, 1<<32, 1), false},
		"a gap up to the end":     {skip(7, 0, most), true},
		"a gap beyond the end":    {skip(7, 1, most), false},
		"a client of 53 bits":     {gc(1<<53-1, 0, 1), true},
		"a client of 54 bits":     {gc(1<<53, 0, 1), false},
		"a client of 64 bits":     {gc(1<<64-1, 0, 1), false},
		"an origin of 53 bits":    {origin(1<<53-1, most-1), true},
		"an origin of 54 bits":    {origin(1<<53, 1), false},
		"an origin's clock":       {origin(8, 1<<32), false},
		"the last deleted":        {deletion(7, most-1, 1), true},
		"deleted beyond it":       {deletion(7, most-1, 2), false},
		"a deletion of 33 bits":   {deletion(7, 1<<32, 1), false},
		"a deletion's length":     {deletion(7, 0, 1<<53-1), false},
		"a deletion of 54 bits":   {deletion(1<<53, 0, 1), false},
		"a deletion by everybody": {deletion(1<<53-1, 0, most), true},
	} {
		d := yjs.New(yjs.Options{})
		d.Text("t").Insert(0, "before")
		before := d.EncodeStateAsUpdate(nil)
		err := d.ApplyUpdate(tt.update, nil)
		if tt.ok && err != nil || !tt.ok && (!errors.Is(err, yjs.ErrMalformed) || !bytes.Equal(before, d.EncodeStateAsUpdate(nil))) {
			t.Errorf("%s: ApplyUpdate() = %v", name, err)
		}
		for what, err := range map[string]error{
			"MergeUpdates":  second(yjs.MergeUpdates([][]byte{before, tt.update})),
			"DiffUpdate":    second(yjs.DiffUpdate(tt.update, nil)),
			"ConvertV1ToV2": second(yjs.ConvertV1ToV2(tt.update)),
			"StateVector":   second(yjs.StateVectorFromUpdate(tt.update)),
		} {
			// A state vector is read from the structs only.
			if tt.ok && err != nil || !tt.ok && err != nil && !errors.Is(err, yjs.ErrMalformed) || !tt.ok && err == nil && what != "StateVector" {
				t.Errorf("%s: %s = %v", name, what, err)
			}
		}
		if !tt.ok {
			continue
		}
		v2, err := yjs.ConvertV1ToV2(tt.update)
		check(err)
		e := yjs.New(yjs.Options{})
		check(e.ApplyUpdateV2(v2, nil))
		f := yjs.New(yjs.Options{})
		check(f.ApplyUpdate(tt.update, nil))
		if !bytes.Equal(e.EncodeStateAsUpdate(nil), f.EncodeStateAsUpdate(nil)) {
			t.Errorf("%s: the state differs in encoding v2", name)
		}
	}
	for name, tt := range map[string]struct {
		vector []byte
		ok     bool
	}{
		"the most":            {of(1, 1<<53-1, most), true},
		"a client of 54 bits": {of(1, 1<<53, 1), false},
		"a clock of 33 bits":  {of(1, 1, 1<<32), false},
	} {
		if _, err := yjs.DecodeStateVector(tt.vector); tt.ok != (err == nil) {
			t.Errorf("a state vector with %s: %v", name, err)
		}
		if _, err := yjs.DecodeRelativePosition(append([]byte{0}, tt.vector[1:]...)); tt.ok != (err == nil) {
			t.Errorf("a position with %s: %v", name, err)
		}
	}
}

func second[T any](_ T, err error) error { return err }

// TestClocksExhausted checks that we can still write after somebody else used our client id up to the
// last clock.
func TestClocksExhausted(t *testing.T) {
	t.Parallel()
	d := yjs.New(yjs.Options{ClientID: 7})
	d.Text("t").Insert(0, "a")
	update := append([]byte{1, 1, 7, 1, 0}, binary.AppendUvarint(nil, 1<<32-3)...)
	d.Transact(nil, func(*yjs.Txn) { // in our own transaction, the client id is not checked
		check(d.ApplyUpdate(append(update, 0), nil))
		d.Text("t").Insert(1, "b")
	})
	d.Text("t").Insert(2, "c")
	e := yjs.New(yjs.Options{})
	check(e.ApplyUpdate(d.EncodeStateAsUpdate(nil), nil))
	if got := e.Text("t").String(); got != "abc" || d.ClientID() == 7 || e.StateVector()[7] != 1<<32-2 {
		t.Errorf("text %q, client %d, clock %d, want abc of another client", got, d.ClientID(), e.StateVector()[7])
	}
}
