package llmtest

import (
	"fmt"
	"math/rand/v2"
	"strconv"
)

// AnthropicStream returns an answer of the Messages API with blocks of every type,
// some that do not exist yet, one after the other or at the same time. Deltas of an
// unknown type have one member, "novel", a string. The same numbers from r give the
// same stream.
func AnthropicStream(r *rand.Rand) Stream {
	c := &claude{writer: newWriter(r)}
	c.start()
	c.blocks()
	c.end()
	return c.stream()
}

type claude struct {
	*writer
	count int // of blocks
	calls []string
}

// growing is a block with its remaining deltas.
type growing struct {
	start  string
	deltas []string
}

func (c *claude) event(typ string, members ...member) {
	for c.one(25) {
		if c.one(4) {
			c.writer.event("future_event", c.message(member{"type", `"future_event"`}, member{"index", "0"}, member{"delta", c.value(2)}))
		} else {
			c.writer.event("ping", c.object(member{"type", `"ping"`}))
		}
	}
	c.writer.event(typ, c.message(append([]member{{"type", c.quote(typ)}}, members...)...))
}

func (c *claude) number(most int) string { return strconv.Itoa(c.r.IntN(most)) }

// tokens are some of the counters of a usage object, or null.
func (c *claude) tokens(members ...member) string {
	for _, name := range []string{"input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens"} {
		switch c.r.IntN(3) {
		case 0:
			members = append(members, member{name, c.number(100_000)})
		case 1:
			members = append(members, member{name, "null"})
		}
	}
	members = append(members, member{"output_tokens", c.number(10_000)})
	if c.one(3) {
		members = append(members, member{"output_tokens_details", c.message(member{"thinking_tokens", c.number(500)})})
	}
	if c.one(3) {
		members = append(members, member{"server_tool_use", c.object(member{"web_search_requests", c.number(5)})})
	}
	return c.message(members...)
}

func (c *claude) start() {
	c.event("message_start", member{"message", c.message(
		member{"id", c.quote("msg_" + c.number(1000))}, member{"type", `"message"`}, member{"role", `"assistant"`},
		member{"model", c.quote("claude-" + c.words())}, member{"content", "[]"},
		member{"stop_reason", "null"}, member{"stop_sequence", "null"}, member{"usage", c.tokens()},
	)})
}

func (c *claude) end() {
	reasons := [...]string{"end_turn", "max_tokens", "stop_sequence", "tool_use", "pause_turn", "refusal", "model_context_window_exceeded", "novel_reason"}
	if c.one(10) {
		c.event("message_delta", member{"delta", `{"stop_reason":null,"stop_sequence":null}`}, member{"usage", c.tokens()})
	}
	c.event("message_delta",
		member{"delta", c.message(member{"stop_reason", c.quote(reasons[c.r.IntN(len(reasons))])}, member{"stop_sequence", "null"})},
		member{"usage", c.tokens()},
	)
	c.event("message_stop")
}

// blocks writes all blocks. Up to three are open at a time.
func (c *claude) blocks() {
	left, width := c.r.IntN(7), 1
	if c.one(4) {
		width = 2 + c.r.IntN(2)
	}
	open := make(map[int]*growing)
	var indexes []int
	for left > 0 || len(indexes) > 0 {
		if left > 0 && len(indexes) < width {
			left--
			g := c.block()
			c.event("content_block_start", member{"index", strconv.Itoa(c.count)}, member{"content_block", g.start})
			open[c.count] = g
			indexes = append(indexes, c.count)
			c.count++
			continue
		}
		at := c.r.IntN(len(indexes))
		i := indexes[at]
		index := member{"index", strconv.Itoa(i)}
		if g := open[i]; len(g.deltas) > 0 {
			c.event("content_block_delta", index, member{"delta", g.deltas[0]})
			g.deltas = g.deltas[1:]
			continue
		}
		c.event("content_block_stop", index)
		indexes = append(indexes[:at], indexes[at+1:]...)
	}
}

func (c *claude) block() *growing {
	g := &growing{}
	switch k := c.r.IntN(12); {
	case k < 3:
		c.text(g)
	case k == 3:
		c.thinking(g)
	case k == 4:
		g.start = c.typed("redacted_thinking", member{"data", c.quote("EmwK" + c.words())})
	case k < 7:
		c.call(g, "tool_use", "toolu_")
	case k == 7:
		c.call(g, c.pick("server_tool_use", "mcp_tool_use"), "srvtoolu_")
	case k < 10:
		c.result(g)
	default:
		c.novel(g)
	}
	for c.one(30) {
		at := c.r.IntN(len(g.deltas) + 1)
		d := c.typed("novel_delta", member{"novel", c.quote(c.words())})
		g.deltas = append(g.deltas[:at], append([]string{d}, g.deltas[at:]...)...)
	}
	return g
}

func (c *claude) pick(of ...string) string { return of[c.r.IntN(len(of))] }

func (c *claude) typed(typ string, members ...member) string {
	return c.message(append([]member{{"type", c.quote(typ)}}, members...)...)
}

func (c *claude) delta(g *growing, typ, name, value string) {
	g.deltas = append(g.deltas, c.typed(typ, member{name, value}))
}

func (c *claude) text(g *growing) {
	start := []member{{"text", `""`}}
	if c.one(10) {
		start[0].value = c.quote(c.words()) // some servers send the first words so
	}
	cites := c.one(3)
	switch {
	case cites && c.one(3):
		start = append(start, member{"citations", c.array(c.citation())})
	case cites:
		start = append(start, member{"citations", "[]"})
	case c.one(3):
		start = append(start, member{"citations", "null"})
	}
	g.start = c.typed("text", start...)
	for range c.r.IntN(12) {
		c.delta(g, "text_delta", "text", c.quote(c.words()))
		if cites && c.one(3) {
			c.delta(g, "citations_delta", "citation", c.citation())
		}
	}
}

func (c *claude) citation() string {
	typ := c.pick("char_location", "page_location", "content_block_location", "web_search_result_location", "search_result_location", "novel_location")
	members := []member{{"cited_text", c.quote(c.words())}}
	switch typ {
	case "web_search_result_location":
		members = append(members, c.page()...)
		members = append(members, member{"encrypted_index", c.quote("Eo8B" + c.words())})
	case "search_result_location":
		members = append(members, member{"source", c.quote(c.words())}, member{"search_result_index", c.number(9)}, member{"start_block_index", "0"}, member{"end_block_index", "1"})
	default:
		members = append(members, member{"document_index", c.number(9)}, member{"document_title", "null"}, member{"start_char_index", c.number(99)}, member{"end_char_index", c.number(999)})
	}
	return c.typed(typ, members...)
}

func (c *claude) page() []member {
	return []member{{"url", c.quote("https://example.com/" + c.words())}, {"title", c.quote(c.words())}}
}

func (c *claude) thinking(g *growing) {
	g.start = c.typed("thinking", member{"thinking", `""`}, member{"signature", `""`})
	for range c.r.IntN(8) {
		c.delta(g, "thinking_delta", "thinking", c.quote(c.words()))
	}
	for range c.r.IntN(3) {
		c.delta(g, "signature_delta", "signature", c.quote("Eu8C"+c.words()))
	}
}

func (c *claude) call(g *growing, typ, prefix string) {
	id := fmt.Sprintf("%s%02d", prefix, c.count)
	members := []member{{"id", c.quote(id)}, {"name", c.quote("tool_" + c.number(9))}}
	if c.one(4) {
		members = append(members, member{"caller", `{"type":"direct"}`})
	}
	if typ != "tool_use" {
		c.calls = append(c.calls, id)
	}
	if c.one(10) { // the whole input at once
		g.start = c.typed(typ, append(members, member{"input", c.anyObject(3)})...)
		return
	}
	g.start = c.typed(typ, append(members, member{"input", "{}"})...)
	if c.one(2) {
		c.delta(g, "input_json_delta", "partial_json", `""`)
	}
	if c.one(8) {
		return // a call without arguments
	}
	for _, piece := range c.cut(c.anyObject(3)) {
		c.delta(g, "input_json_delta", "partial_json", c.quote(piece))
	}
}

// result is the outcome of a tool that the provider ran, of an earlier call or of one
// that was in another answer.
func (c *claude) result(g *growing) {
	id := "srvtoolu_other"
	if len(c.calls) > 0 && !c.one(4) {
		id = c.calls[c.r.IntN(len(c.calls))]
	}
	typ := c.pick("web_search_tool_result", "web_fetch_tool_result", "code_execution_tool_result", "advisor_tool_result",
		"bash_code_execution_tool_result", "text_editor_code_execution_tool_result", "tool_search_tool_result", "mcp_tool_result")
	var content string
	switch {
	case typ != "mcp_tool_result" && c.one(4):
		content = c.typed(typ+"_error", member{"error_code", `"unavailable"`})
	case typ == "web_search_tool_result":
		pages := make([]string, c.r.IntN(4))
		for i := range pages {
			pages[i] = c.typed("web_search_result", append(c.page(), member{"encrypted_content", c.quote(c.words())}, member{"page_age", c.pick("null", `"May 1, 2026"`)})...)
		}
		content = c.array(pages...)
	case typ == "mcp_tool_result":
		content = c.array(c.typed("text", member{"text", c.quote(c.words())}))
	default:
		content = c.typed(c.pick("web_fetch_result", "code_execution_result", "novel_result"),
			member{"stdout", c.quote(c.words())}, member{"stderr", `""`}, member{"return_code", c.number(3)}, member{"content", c.array(c.value(2))})
	}
	members := []member{{"tool_use_id", c.quote(id)}, {"content", content}}
	if typ == "mcp_tool_result" {
		members = append(members, member{"is_error", c.pick("true", "false")})
	}
	g.start = c.typed(typ, members...)
}

// novel is a block that the codec knows nothing about.
func (c *claude) novel(g *growing) {
	typ := c.pick("container_upload", "mcp_tool_listing", "compaction", "hologram", "hologram")
	members := []member{{"file_id", `"file_1"`}, {"value", c.value(3)}}
	switch {
	case typ == "compaction":
		members = append(members, member{"content", "null"})
		delta := c.object(member{"type", `"compaction_delta"`}, member{"content", c.quote("s" + c.words())}, member{"encrypted_content", `"AAAA"`})
		g.deltas = append(g.deltas, delta)
	case c.one(3):
		members = append(members, member{"novel", c.quote(c.words())})
	}
	g.start = c.typed(typ, members...)
	if typ == "hologram" && c.one(2) {
		c.delta(g, "novel_delta", "novel", c.quote(c.words()))
	}
}
