package mux

import (
	"bytes"
	"errors"
	"io"
	"slices"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"
)

var samples = []frame{
	{kind: kindOpen, stream: 1, path: "/ws/documents/x", text: "signed", number: 1 << 40},
	{kind: kindData, stream: 300, more: true, data: []byte("part")},
	{kind: kindData, stream: 1},
	{kind: kindClientClose, stream: 1 << 40, number: CodeLost, text: "gone"},
	{kind: kindServerClose, stream: 7, number: 4404, text: "The document was deleted."},
	{kind: kindCredit, stream: 7, number: Window / 2},
	{kind: kindDeliver, streams: []uint64{1, 2, 70_000}, more: true, data: bytes.Repeat([]byte("x"), MaxPiece)},
	{kind: kindPing},
	{kind: kindPong},
	{kind: kindGoAway},
}

var comparing = cmp.Options{
	cmp.AllowUnexported(frame{}),
	cmp.Transformer("bytes", func(b []byte) string { return string(b) }),
	cmp.Transformer("streams", func(s []uint64) [4]uint64 { var a [4]uint64; copy(a[:], s); return a }),
}

func TestFrames(t *testing.T) {
	t.Parallel()
	var all []byte
	for _, f := range samples {
		all = f.append(all)
	}
	for name, from := range map[string]io.Reader{
		"whole": bytes.NewReader(all), "byte by byte": iotest.OneByteReader(bytes.NewReader(all)), "in halves": iotest.HalfReader(bytes.NewReader(all)),
	} {
		r := newReader(from, nil)
		var got frame
		for i, want := range samples {
			body, err := r.body()
			if err == nil {
				err = got.parse(body)
			}
			if err != nil {
				t.Fatalf("%s: frame %d: %v", name, i, err)
			}
			if diff := cmp.Diff(want, got, comparing); diff != "" {
				t.Errorf("%s: frame %d (-want +got):\n%s", name, i, diff)
			}
		}
		if _, err := r.body(); !errors.Is(err, io.EOF) {
			t.Errorf("%s: after the last frame: %v, want EOF", name, err)
		}
	}
	// The bytes read before the upgrade come first.
	r := newReader(bytes.NewReader(all[10:]), all[:10])
	if body, err := r.body(); err != nil || body[0] != kindOpen {
		t.Errorf("the first frame = %x, %v", body, err)
	}
}

func TestMalformedFrames(t *testing.T) {
	t.Parallel()
	for name, body := range map[string][]byte{
		"empty":                    {},
		"unknown":                  {99},
		"truncated":                {kindOpen, 1},
		"trailing bytes":           {kindPing, 0},
		"flag above 1":             {kindData, 1, 2},
		"text beyond the frame":    {kindClientClose, 1, 1, 5, 'x'},
		"streams beyond the frame": {kindDeliver, 0, 9, 1},
		"too many streams":         append([]byte{kindDeliver, 0, 0xff, 0xff, 1}, bytes.Repeat([]byte{1}, 40_000)...),
		"part too long":            append([]byte{kindData, 1, 0}, make([]byte, MaxPart+1)...),
		"number of 11 bytes":       append([]byte{kindCredit}, bytes.Repeat([]byte{0xff}, 11)...),
	} {
		var f frame
		if err := f.parse(body); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: %v, want ErrMalformed", name, err)
		}
	}
	if _, err := newReader(bytes.NewReader([]byte{0xff, 0xff, 0xff, 0xff, 1}), nil).body(); !errors.Is(err, ErrMalformed) {
		t.Errorf("a frame of 4 GiB: %v, want ErrMalformed", err)
	}
}

// FuzzFrames checks that any input is an error or a frame that survives encoding.
func FuzzFrames(f *testing.F) {
	var all []byte
	for _, s := range samples {
		b := s.append(nil)
		f.Add(b)
		all = append(all, b[:min(len(b), 200)]...)
	}
	f.Add(all)
	f.Fuzz(func(t *testing.T, in []byte) {
		r := newReader(bytes.NewReader(in), nil)
		var one, two frame
		for {
			body, err := r.body()
			if err != nil {
				return
			}
			if one.parse(body) != nil {
				continue
			}
			again := slices.Clone(one.append(nil))
			if err := two.parse(again[headSize:]); err != nil {
				t.Fatalf("parse of the encoded %+v: %v", one, err)
			}
			if diff := cmp.Diff(one, two, comparing); diff != "" {
				t.Fatalf("the frame changed in encoding:\n%s", diff)
			}
		}
	})
}
