package yjs_test

import (
	"compress/gzip"
	"io"
	"os"
	"strings"
	"testing"

	"signalbox.dev/pkg/yjs"
)

// TestTrace replays a long editing trace, sends every edit to another replica, loads the result,
// and expects the same text everywhere; with the real trace also the text and the state of npm
// yjs.
func TestTrace(t *testing.T) {
	t.Parallel()
	es := trace(t)
	if os.Getenv("SIGNALBOX_B4_TRACE") == "" || testing.Short() {
		es = es[:min(len(es), 40_000)]
	}
	local := yjs.New(yjs.Options{ClientID: 1})
	remote := yjs.New(yjs.Options{ClientID: 2})
	var updates [][]byte
	local.OnUpdate(func(u *yjs.Update) {
		updates = append(updates, u.V1())
		check(remote.ApplyUpdate(u.V1(), nil))
	})
	replay(local, es)
	want := local.Text("text").String()
	state := local.EncodeStateAsUpdate(nil)
	equal(t, "state of the remote replica", remote.EncodeStateAsUpdate(nil), state)
	merged, err := yjs.MergeUpdates(updates)
	check(err)
	for name, update := range map[string][]byte{"loaded": state, "merged": merged} {
		d := yjs.New(yjs.Options{ClientID: 3})
		check(d.ApplyUpdate(update, nil))
		if got := d.Text("text").String(); got != want {
			t.Errorf("%s: text has %d bytes, want %d", name, len(got), len(want))
		}
	}
	if path := os.Getenv("SIGNALBOX_B4_TRACE"); path != "" && !testing.Short() {
		if final := readFinal(t, strings.Replace(path, "-trace", "-final", 1)); want != final {
			t.Errorf("text of the trace has %d bytes, want %d", len(want), len(final))
		}
		if len(state) != 223_414 {
			t.Errorf("state of the trace has %d bytes, want 223414 as in npm yjs", len(state))
		}
	}
}

func readFinal(t *testing.T, path string) string {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
