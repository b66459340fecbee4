package oracle

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// fixtures are recorded streams: those that the codec itself is tested with, and what
// the simulated provider writes.
func fixtures(t *testing.T, c *codec) map[string][]byte {
	t.Helper()
	found := make(map[string][]byte)
	for _, pattern := range []string{
		"../../services/agent-runner/internal/llm/" + c.name + "/testdata/decode/*.sse",
		"../../services/simulator/testdata/golden/*." + c.simulated + ".sse",
	} {
		paths, err := filepath.Glob(pattern)
		if err != nil || len(paths) == 0 {
			t.Fatalf("no streams match %s: %v", pattern, err)
		}
		for _, path := range paths {
			b, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			found[strings.TrimSuffix(filepath.Base(path), ".sse")] = b
		}
	}
	return found
}

// Every recorded stream gives the same on both sides, or both refuse it, but for those
// of the list of differences.
func TestFixtures(t *testing.T) {
	t.Parallel()
	for _, c := range codecs() {
		known := make(map[string]bool)
		for _, d := range differences() {
			known[d.codec+"/"+d.stream] = true
		}
		for name, stream := range fixtures(t, &c) {
			if known[c.name+"/"+name] {
				continue
			}
			for i, sdk := range c.sdks {
				t.Run(fmt.Sprintf("%s/%s/%d", c.name, name, i), func(t *testing.T) {
					t.Parallel()
					got, err := c.ours(bytes.NewReader(stream))
					want, wantErr := sdk(bytes.NewReader(stream))
					if (err == nil) != (wantErr == nil) {
						t.Fatalf("ours: %v, the SDK: %v, want both to take it or neither", err, wantErr)
					}
					if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); err == nil && diff != "" {
						t.Errorf("(-SDK +ours):\n%s", diff)
					}
				})
			}
		}
	}
}

// Each difference is still there, as the package comment says.
func TestDifferences(t *testing.T) {
	t.Parallel()
	for _, c := range codecs() {
		recorded := fixtures(t, &c)
		for _, d := range differences() {
			if d.codec != c.name {
				continue
			}
			t.Run(c.name+"/"+d.name, func(t *testing.T) {
				t.Parallel()
				stream, ok := recorded[d.stream]
				if !ok {
					stream = []byte(d.stream)
				}
				mine := outcome(c.ours, stream)
				if !strings.Contains(mine, d.ours) {
					t.Errorf("ours gives %s, want %s", mine, d.ours)
				}
				for i, sdk := range c.sdks {
					if d.beta && i == 0 {
						continue
					}
					theirs := outcome(sdk, stream)
					if !strings.Contains(theirs, d.sdk) {
						t.Errorf("SDK %d gives %s, want %s", i, theirs, d.sdk)
					}
					if theirs == mine {
						t.Errorf("SDK %d gives the same, %s: this is no difference any more", i, mine)
					}
				}
			})
		}
	}
}

// outcome is an answer, or the error that came instead, in one line.
func outcome(read func(io.Reader) (*answer, error), stream []byte) string {
	a, err := read(bytes.NewReader(stream))
	if err != nil {
		return "error: " + err.Error()
	}
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(a); err != nil {
		return "error: " + err.Error()
	}
	return strings.TrimSpace(b.String())
}
