package docproxy

import (
	"bytes"
	"math/rand/v2"
	"strings"
	"testing"
	"unicode/utf8"
)

// frame is a server's frame with an opcode and n bytes.
func frame(op byte, n int) []byte {
	b := []byte{0x80 | op}
	switch {
	case n < 126:
		b = append(b, byte(n))
	case n < 1<<16:
		b = append(b, 126, byte(n>>8), byte(n))
	default:
		b = append(b, 127, 0, 0, 0, 0, byte(n>>24), byte(n>>16), byte(n>>8), byte(n))
	}
	return append(b, bytes.Repeat([]byte{0x88}, n)...) // looks like a close frame
}

// TestFramesInPieces cuts streams of frames anywhere: where a frame ends is found
// whatever the pieces are.
func TestFramesInPieces(t *testing.T) {
	t.Parallel()
	rnd := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // a seed to replay
	for range 500 {
		var stream []byte
		ends := map[int]bool{0: true}
		for range 1 + rnd.IntN(6) {
			n := []int{0, 1, 125, 126, 300, 65535, 65536}[rnd.IntN(7)]
			stream = append(stream, frame([]byte{0, 1, 2, 9, 10}[rnd.IntN(5)], n)...)
			ends[len(stream)] = true
		}
		var f frames
		for at := 0; ; {
			if f.between() != ends[at] || f.closed {
				t.Fatalf("at byte %d: between = %t, closed = %t, want %t and not closed", at, f.between(), f.closed, ends[at])
			}
			if at == len(stream) {
				break
			}
			n := min(1+rnd.IntN(1+rnd.IntN(200)), len(stream)-at)
			f.follow(stream[at : at+n])
			at += n
		}
	}
}

func TestFramesSeeTheCode(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		stream []byte
		want   uint16
	}{
		"with a reason":       {appendClose(nil, 4404, "gone"), 4404},
		"behind others":       {appendClose(append(frame(2, 300), frame(9, 3)...), 4401, ""), 4401},
		"without a code":      {frame(opClose, 0), codeNone},
		"the first of two":    {appendClose(appendClose(nil, 1012, "x"), 4401, ""), 1012},
		"masked all the same": {[]byte{0x88, 0x82, 0, 0, 0, 0, 0x11, 0x34}, 4404},
	} {
		for _, size := range []int{1, 2, 3, 1000} {
			var f frames
			for p := tt.stream; len(p) > 0; p = p[min(size, len(p)):] {
				f.follow(p[:min(size, len(p))])
			}
			if !f.closed || f.code != tt.want || !f.between() {
				t.Errorf("%s in pieces of %d: closed = %t with %d, between = %t, want %d", name, size, f.closed, f.code, f.between(), tt.want)
			}
		}
	}
}

func TestCloseFrameFits(t *testing.T) {
	t.Parallel()
	got := appendClose(nil, 1013, strings.Repeat("ü", 100))
	if reason := got[4:]; len(got) > 127 || int(got[1]) != len(got)-2 || !utf8.Valid(reason) || len(reason) != 122 {
		t.Errorf("close frame of a long reason = %d bytes, %q", len(got), reason)
	}
}

func FuzzParseAuth(f *testing.F) {
	f.Add([]byte("\x03doc\x02\x00\x05token"))
	f.Add([]byte("\x03doc\x00\x00\x01\x00"))
	f.Add(denied("doc", "no"))
	f.Add([]byte("\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"))
	f.Fuzz(func(t *testing.T, msg []byte) {
		a, found, err := parseAuth(msg)
		if found && err != nil || !found && (a.token != "") {
			t.Errorf("parseAuth(%q) = %+v, %t, %v", msg, a, found, err)
		}
		if len(a.token)+len(a.document) > len(msg) {
			t.Errorf("parseAuth(%q) = %+v: more than there was", msg, a)
		}
	})
}
