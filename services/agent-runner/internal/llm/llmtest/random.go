package llmtest

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"

	"signalbox.dev/services/agent-runner/internal/llm"
)

// RandomHistory returns a request whose messages come in any order, with answers of
// every dialect, results that belong to none, calls that have none, ids twice, and
// empty texts. Each must convert to a request that a provider accepts.
func RandomHistory(r *rand.Rand) *llm.Request {
	req := &llm.Request{Model: "m", Tools: tools(), Continue: r.IntN(4) == 0}
	if r.IntN(2) == 0 {
		req.System = []llm.SystemBlock{{Text: "a", Cache: r.IntN(2) == 0}, {Text: "b", Cache: r.IntN(2) == 0}, {Text: "c", Cache: r.IntN(2) == 0}}
	}
	if r.IntN(2) == 0 {
		req.Reasoning = llm.Reasoning{Budget: 2000}
	}
	pool := []llm.Message{
		user(`"hi"`), user(`" "`), user(`[{"type":"text","text":""}]`), user(`[{"type":"file","mediaType":"image/png","data":"` + png + `"}]`),
		{Role: llm.System, Content: json.RawMessage(`"sum"`)},
		answer(thinkingContent, "anthropic", thinkingRaw), answer(thinkingContent, "openai", chatRaw), answer(thinkingContent, "", ""),
		answer(chatContent, "openai", chatRaw), answer(chatContent, "openrouter", chatRaw), answer(chatContent, "openai-compatible", chatRaw),
		answer(searchContent, "anthropic", searchRaw), answer(pausedTxt, "anthropic", pausedRaw),
		answer(`[]`, "anthropic", `[]`), answer(`[{"type":"text","text":" "}]`, "anthropic", `[{"type":"text","text":" "}]`), answer(`"text \n"`, "", ""),
		answer(`[{"type":"text","text":"x"}]`, "anthropic", `[{"type":"web_search_tool_result","tool_use_id":"srvtoolu_09","content":[]},{"type":"text","text":"x "}]`),
		results(thinkingResults), results(chatResult), results(`[]`),
		results(`[{"type":"tool-result","toolCallId":"toolu_01","toolName":"x","output":{"type":"content","value":[]}}]`),
	}
	for range r.IntN(12) {
		req.Messages = append(req.Messages, pool[r.IntN(len(pool))])
	}
	return req
}

// Words returns random text as the inside of a JSON string, with escapes, characters
// of every length, and now and then nothing.
func Words(r *rand.Rand) string {
	pieces := []string{"a", " word", `\n`, `\"`, `\\`, `\/`, "é", "世", "😀", `\u00e9`, `\ud83d\ude00`, `\u0001`, `\t`, "0123456789abcdef"}
	var b strings.Builder
	for range r.IntN(6) {
		b.WriteString(pieces[r.IntN(len(pieces))])
	}
	return b.String()
}

// Object returns a random JSON object, on one line.
func Object(r *rand.Rand) string {
	var b strings.Builder
	b.WriteByte('{')
	for i := range r.IntN(4) {
		if i > 0 {
			b.WriteString(", ")
		}
		switch r.IntN(3) {
		case 0:
			fmt.Fprintf(&b, `"k%d": "%s"`, i, Words(r))
		case 1:
			fmt.Fprintf(&b, `"k%d":%d`, i, r.Int64())
		default:
			fmt.Fprintf(&b, `"k%d":[true,null,{"x":1.5e3}]`, i)
		}
	}
	b.WriteByte('}')
	return b.String()
}

// Fragments cuts s into random pieces, some of them empty.
func Fragments(r *rand.Rand, s string) []string {
	var out []string
	runes := []rune(s)
	for len(runes) > 0 {
		n := min(r.IntN(8), len(runes))
		out = append(out, string(runes[:n]))
		runes = runes[n:]
	}
	return out
}

// Quote returns s as a JSON string.
func Quote(s string) string {
	b, err := json.Marshal(s)
	if err != nil {
		return `""`
	}
	return string(b)
}
