package oracle

import (
	"bytes"
	"flag"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"signalbox.dev/services/agent-runner/internal/llm/llmtest"
)

var (
	events = flag.Int("events", 50_000, "how many generated events each dialect is compared over")
	seed   = flag.Uint64("seed", 0, "compare the stream of this seed alone")
)

// codec is one dialect as both sides read it.
type codec struct {
	name      string
	simulated string // the simulated provider's streams, a pattern
	generate  func(*rand.Rand) llmtest.Stream
	ours      func(io.Reader) (*answer, error)
	sdks      []func(io.Reader) (*answer, error)
}

func codecs() []codec {
	return []codec{
		{"anthropic", "anthropic", llmtest.AnthropicStream, claudeOurs, []func(io.Reader) (*answer, error){claudeSDK, claudeBeta}},
		{"openai", "open*", llmtest.OpenAIStream, gptOurs, []func(io.Reader) (*answer, error){gptSDK}},
	}
}

// What a stream adds up to is the same in the runner's codec and in the official SDK,
// whatever the stream's spelling and however its bytes arrive.
func TestGeneratedStreams(t *testing.T) {
	t.Parallel()
	for _, c := range codecs() {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if *seed != 0 {
				c.compare(t, *seed)
				return
			}
			streams, seen := uint64(0), 0
			for seen < *events && !t.Failed() {
				streams++
				seen += c.compare(t, streams)
			}
			t.Logf("%d events in %d streams", seen, streams)
		})
	}
}

// compare reads the stream of a seed with both sides and returns its events.
func (c *codec) compare(t *testing.T, seed uint64) int {
	t.Helper()
	r := rand.New(rand.NewPCG(seed, 7))
	s := c.generate(r)
	got, err := c.ours(llmtest.Chunks(r, s.Bytes))
	if err != nil {
		t.Errorf("seed %d: ours: %v over\n%s", seed, err, s.Bytes)
		return s.Events
	}
	want, err := c.sdks[seed%uint64(len(c.sdks))](llmtest.Chunks(r, s.Bytes))
	if err != nil {
		t.Errorf("seed %d: the SDK: %v over\n%s", seed, err, s.Bytes)
		return s.Events
	}
	if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("seed %d: (-SDK +ours):\n%s\nof\n%s", seed, diff, s.Bytes)
	}
	return s.Events
}

// The generator leaves no type of block out.
func TestEveryBlock(t *testing.T) {
	t.Parallel()
	missing := make(map[string]bool)
	for _, typ := range []string{
		"text", "thinking", "redacted_thinking", "tool_use", "server_tool_use", "mcp_tool_use",
		"web_search_tool_result", "web_fetch_tool_result", "advisor_tool_result", "code_execution_tool_result",
		"bash_code_execution_tool_result", "text_editor_code_execution_tool_result", "tool_search_tool_result", "mcp_tool_result",
		"container_upload", "compaction", "mcp_tool_listing", "hologram",
	} {
		missing[typ] = true
	}
	for seed := uint64(1); seed < 500; seed++ {
		s := llmtest.AnthropicStream(rand.New(rand.NewPCG(seed, 7)))
		a, err := claudeOurs(bytes.NewReader(s.Bytes))
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		for _, b := range a.Raw {
			typ, _ := b.(map[string]any)["type"].(string)
			delete(missing, typ)
		}
	}
	if len(missing) > 0 {
		t.Errorf("no stream has blocks of the types %v", slices.Sorted(maps.Keys(missing)))
	}
}
