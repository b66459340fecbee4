package yproto_test

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"os/exec"
	"testing"

	"github.com/google/go-cmp/cmp"

	"signalbox.dev/services/document-sync/internal/yproto"
)

var update = flag.Bool("update", false, "write testdata/golden.json anew")

const clientsDir = "../../../e2e/yclients"

// TestGoldenIsNpm checks that the npm packages write the golden messages.
func TestGoldenIsNpm(t *testing.T) {
	t.Parallel()
	if _, err := os.Stat(clientsDir + "/node_modules/.installed"); err != nil {
		t.Fatal("the npm clients are not installed: run `make clients`")
	}
	cmd := exec.CommandContext(t.Context(), "node", "golden.mjs")
	cmd.Dir = clientsDir
	cmd.Stderr = os.Stderr
	npm, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile("testdata/golden.json", npm, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	file, err := os.ReadFile("testdata/golden.json")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(file, npm) {
		t.Error("testdata/golden.json differs from what the npm packages write: run with -update, and look at the changes")
	}
}

// golden is a message that an npm package wrote.
type golden struct {
	Name, Envelope, From, Document string
	Hex, Kind, Payload, Version    string
	Reply, Stored                  bool
}

var kinds = map[string]yproto.Kind{
	"Step1": yproto.Step1, "Step2": yproto.Step2, "Update": yproto.Update, "Awareness": yproto.Awareness,
	"QueryAwareness": yproto.QueryAwareness, "Token": yproto.Token, "Denied": yproto.Denied,
	"Authenticated": yproto.Authenticated, "Stateless": yproto.Stateless, "BroadcastStateless": yproto.BroadcastStateless,
	"Close": yproto.Close, "SyncStatus": yproto.SyncStatus, "Ping": yproto.Ping, "Pong": yproto.Pong,
}

func goldens(t testing.TB) []golden {
	t.Helper()
	b, err := os.ReadFile("testdata/golden.json")
	if err != nil {
		t.Fatal(err)
	}
	var all []golden
	if err := json.Unmarshal(b, &all); err != nil {
		t.Fatal(err)
	}
	return all
}

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func (g golden) decode(b []byte) (yproto.Message, error) {
	if g.Envelope == "hocuspocus" {
		return yproto.DecodeHocuspocus(b)
	}
	return yproto.Decode(b)
}

// encode encodes the message; it reports false for messages that we never send.
func (g golden) encode(t testing.TB) ([]byte, bool) {
	t.Helper()
	var b []byte
	hocuspocus := g.Envelope == "hocuspocus"
	if hocuspocus && g.Document != "" {
		b = yproto.AppendDocument(b, g.Document)
	}
	payload := unhex(t, g.Payload)
	switch kinds[g.Kind] {
	case yproto.Step1:
		return yproto.AppendStep1(b, payload), !g.Reply
	case yproto.Step2:
		return yproto.AppendStep2(b, payload), true
	case yproto.Update:
		return yproto.AppendUpdate(b, payload), true
	case yproto.Awareness:
		return yproto.AppendAwareness(b, payload), true
	case yproto.QueryAwareness:
		return yproto.AppendQueryAwareness(b), true
	case yproto.Token:
		return yproto.AppendToken(b, string(payload), string(unhex(t, g.Version))), g.From != "server"
	case yproto.Denied:
		if hocuspocus {
			return yproto.AppendHocuspocusDenied(b, string(payload)), true
		}
		return yproto.AppendDenied(b, string(payload)), true
	case yproto.Authenticated:
		return yproto.AppendAuthenticated(b, string(payload)), true
	case yproto.Stateless:
		return yproto.AppendStateless(b, string(payload)), true
	case yproto.Close:
		if g.From == "server" {
			return yproto.AppendClose(b, string(payload)), true
		}
		return yproto.AppendLeave(b), true
	case yproto.SyncStatus:
		return yproto.AppendSyncStatus(b, g.Stored), true
	case yproto.Ping:
		return yproto.AppendPing(b), true
	case yproto.Pong:
		return yproto.AppendPong(b), true
	}
	return nil, false
}

func TestGolden(t *testing.T) {
	t.Parallel()
	type meaning struct {
		Document, Payload, Version string
		Kind                       yproto.Kind
		Reply, Stored              bool
	}
	seen := map[yproto.Kind]bool{}
	for _, g := range goldens(t) {
		b := unhex(t, g.Hex)
		m, err := g.decode(b)
		if err != nil {
			t.Errorf("%s, %s: %v", g.Envelope, g.Name, err)
			continue
		}
		seen[m.Kind] = true
		want := meaning{g.Document, g.Payload, g.Version, kinds[g.Kind], g.Reply, g.Stored}
		got := meaning{string(m.Document), hex.EncodeToString(m.Payload), hex.EncodeToString(m.Version), m.Kind, m.Reply, m.Stored}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s, %s (-want +got):\n%s", g.Envelope, g.Name, d)
		}
		if again, ours := g.encode(t); ours && !bytes.Equal(again, b) {
			t.Errorf("%s, %s: encoded as %x, npm encodes %x", g.Envelope, g.Name, again, b)
		}
		if _, err := g.decode(append(bytes.Clone(b), 0)); err != nil && len(b) > 1 {
			t.Errorf("%s, %s: with trailing bytes: %v", g.Envelope, g.Name, err)
		}
	}
	for name, k := range kinds {
		if !seen[k] && k != yproto.Ping { // one byte: tested below
			t.Errorf("no golden message of kind %s", name)
		}
	}
}

// TestTruncated cuts every message anywhere: the result is malformed, unless the last part is
// optional: the reason of a close, a token, the version after a token.
func TestTruncated(t *testing.T) {
	t.Parallel()
	for _, g := range goldens(t) {
		b := unhex(t, g.Hex)
		for n := range len(b) {
			m, err := g.decode(b[:n])
			if err != nil && !errors.Is(err, yproto.ErrMalformed) {
				t.Fatalf("%s cut to %d bytes: %v, want ErrMalformed", g.Name, n, err)
			}
			if err == nil && m.Kind != yproto.Close && m.Kind != yproto.Token {
				t.Errorf("%s cut to %d of %d bytes is read as %+v", g.Name, n, len(b), m)
			}
		}
	}
}

func TestMalformed(t *testing.T) {
	t.Parallel()
	long := yproto.AppendPing(yproto.AppendDocument(nil, string(bytes.Repeat([]byte("n"), yproto.MaxDocument+1))))
	for _, tc := range []struct {
		name       string
		hocuspocus bool
		in         []byte
	}{
		{"nothing", false, nil},
		{"a sync message of no kind", false, []byte{0}},
		{"a sync message of an unknown kind", false, []byte{0, 3, 0}},
		{"fewer bytes than announced", false, []byte{0, 2, 5, 1, 2}},
		{"a length without an end", false, []byte{0, 2, 0xff}},
		{"a length beyond 2^53", false, []byte{0, 2, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x10}},
		{"a length of nine bytes", false, []byte{0, 2, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0}},
		{"a reason that is not UTF-8", false, []byte{2, 0, 1, 0xff}},
		{"nothing", true, nil},
		{"only a name", true, []byte{1, 'a'}},
		{"a name that is not UTF-8", true, []byte{1, 0xff, 0}},
		{"a name that is too long", true, long},
		{"an auth message of an unknown kind", true, []byte{1, 'a', 2, 3}},
		{"half a token", true, []byte{1, 'a', 2, 0, 5, 'x'}},
		{"a version that is not UTF-8", true, []byte{1, 'a', 2, 0, 0, 1, 0xff}},
		{"half a reason", true, []byte{1, 'a', 7, 3, 'x'}},
		{"a status without a value", true, []byte{1, 'a', 8}},
	} {
		g := golden{}
		if tc.hocuspocus {
			g.Envelope = "hocuspocus"
		}
		if m, err := g.decode(tc.in); !errors.Is(err, yproto.ErrMalformed) {
			t.Errorf("%s (Hocuspocus: %v): %+v, %v, want ErrMalformed", tc.name, tc.hocuspocus, m, err)
		}
	}
}

func TestUnknown(t *testing.T) {
	t.Parallel()
	if m, err := yproto.Decode([]byte{42, 1, 2, 3}); err != nil || m.Kind != yproto.Unknown {
		t.Errorf("Decode of an unknown type = %+v, %v, want Unknown", m, err)
	}
	if m, err := yproto.DecodeHocuspocus([]byte{1, 'a', 42, 1}); err != nil || m.Kind != yproto.Unknown || string(m.Document) != "a" {
		t.Errorf("DecodeHocuspocus of an unknown type = %+v, %v, want Unknown of a", m, err)
	}
	if m, err := yproto.DecodeHocuspocus([]byte{9}); err != nil || m.Kind != yproto.Ping {
		t.Errorf("DecodeHocuspocus of a ping = %+v, %v", m, err)
	}
}

func TestHasStructs(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]bool{"\x00\x00": false, "\x00\x01\x07\x01\x00\x03": false, "\x01\x01\x07\x05\x44": true, "": true, "\x80\x00\x00": false} {
		if got := yproto.HasStructs([]byte(in)); got != want {
			t.Errorf("HasStructs(%x) = %v, want %v", in, got, want)
		}
	}
}

func FuzzDecode(f *testing.F) {
	for _, g := range goldens(f) {
		f.Add(unhex(f, g.Hex))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, decode := range []func([]byte) (yproto.Message, error){yproto.Decode, yproto.DecodeHocuspocus} {
			whole := bytes.Clone(b)
			m, err := decode(b)
			if err != nil && !errors.Is(err, yproto.ErrMalformed) {
				t.Fatalf("%x: %v", b, err)
			}
			if err != nil && !cmp.Equal(m, yproto.Message{}) {
				t.Fatalf("%x: %+v with the error %v", b, m, err)
			}
			if n := len(m.Document) + len(m.Payload) + len(m.Version); n > len(b) {
				t.Fatalf("%x: %d bytes decoded from %d", b, n, len(b))
			}
			// Appending to decoded bytes must not change the input.
			_ = append(m.Payload, "overwritten"...)
			_ = append(m.Document, "overwritten"...)
			_ = append(m.Version, "overwritten"...)
			if !bytes.Equal(b, whole) {
				t.Fatalf("%x was changed", whole)
			}
			yproto.HasStructs(m.Payload)
		}
	})
}

func BenchmarkDecode(b *testing.B) {
	msg := yproto.AppendUpdate(yproto.AppendDocument(nil, "01890a5d-ac96-774b-bcce-b302099a8057"), make([]byte, 60))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := yproto.DecodeHocuspocus(msg); err != nil {
			b.Fatal(err)
		}
	}
}
