package llmtest

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
)

// OpenAIStream returns an answer of the Chat Completions API, from OpenAI itself or
// from a server that speaks its dialect and adds reasoning, annotations and members of
// its own: in a delta "x_text" (a string in pieces), "x_list" (an array in pieces) and
// "x_object" (the last one counts). The same numbers from r give the same stream.
func OpenAIStream(r *rand.Rand) Stream {
	g := &gpt{writer: newWriter(r)}
	g.id, g.model = g.quote("chatcmpl-"+strconv.Itoa(r.IntN(1000))), g.quote("gpt-"+g.words())
	g.usage, g.compatible = !g.one(4), g.one(2)
	for i := range r.IntN(4) {
		g.calls = append(g.calls, g.call(i))
	}
	g.answer()
	g.end()
	return g.stream()
}

type gpt struct {
	*writer
	id, model  string
	usage      bool       // the last chunk has the usage
	compatible bool       // not OpenAI itself
	calls      [][]string // the remaining fragments of each call: elements of tool_calls
	begun      int        // of the calls; they begin in the order of their indexes
}

func (g *gpt) number(most int) string { return strconv.Itoa(g.r.IntN(most)) }

// chunk writes one chunk; an empty delta gives one without choices.
func (g *gpt) chunk(delta, finish string, more ...member) {
	members := []member{{"id", g.id}, {"object", `"chat.completion.chunk"`}, {"created", "1763750000"}, {"model", g.model}}
	if g.one(8) {
		members = append(members, member{"service_tier", `"default"`}, member{"system_fingerprint", "null"})
	}
	choices := g.array()
	if delta != "" {
		list := []string{g.choice("0", delta, finish)}
		if g.one(40) {
			list = append(list, g.choice("1", g.object(member{"content", g.quote("the other choice")}), "null"))
		}
		choices = g.array(list...)
	}
	members = append(members, member{"choices", choices})
	if g.usage && len(more) == 0 {
		members = append(members, member{"usage", "null"})
	}
	if g.one(4) {
		members = append(members, member{"obfuscation", `"Xb9tA"`})
	}
	g.event("", g.message(append(members, more...)...))
}

func (g *gpt) choice(index, delta, finish string) string {
	members := []member{{"index", index}, {"delta", delta}}
	if !g.one(4) {
		members = append(members, member{"logprobs", "null"})
	}
	return g.message(append(members, member{"finish_reason", finish})...)
}

func (g *gpt) end() {
	reasons := [...]string{"stop", "length", "tool_calls", "content_filter", "novel_reason"}
	g.chunk(g.object(), g.quote(reasons[g.r.IntN(len(reasons))]))
	if g.usage {
		g.chunk("", "", member{"usage", g.message(
			member{"prompt_tokens", g.number(100_000)}, member{"completion_tokens", g.number(10_000)}, member{"total_tokens", g.number(110_000)},
			member{"prompt_tokens_details", g.message(member{"cached_tokens", g.number(1000)}, member{"cache_write_tokens", g.number(100)}, member{"audio_tokens", "0"})},
			member{"completion_tokens_details", g.message(member{"reasoning_tokens", g.number(1000)}, member{"audio_tokens", "0"})},
		)})
	}
	g.event("", "[DONE]")
}

// answer writes the deltas: reasoning first, then text and the fragments of calls mixed.
func (g *gpt) answer() {
	if !g.one(4) {
		content := [...]string{"null", `""`}[g.r.IntN(2)]
		g.chunk(g.message(member{"role", `"assistant"`}, member{"content", content}, member{"refusal", "null"}), "null")
	}
	if g.compatible && g.one(2) {
		g.reasoning()
	}
	text := "content"
	if g.one(12) {
		text = "refusal"
	}
	for said := g.r.IntN(30); said > 0 || g.callsLeft(); {
		var members []member
		if said > 0 && (g.one(2) || len(g.calls) == 0) {
			said--
			members = append(members, member{text, g.quote(g.words())})
		}
		var fragments []string
		for len(g.calls) > 0 && (len(fragments) == 0 && g.one(2) || g.one(8)) {
			fragments = append(fragments, g.fragment()...)
		}
		if len(fragments) > 0 {
			members = append(members, member{"tool_calls", g.array(fragments...)})
		}
		if g.compatible {
			members = append(members, g.extras()...)
		}
		if len(members) > 0 {
			g.chunk(g.message(members...), "null")
		}
	}
}

func (g *gpt) callsLeft() bool {
	return slices.ContainsFunc(g.calls, func(pieces []string) bool { return len(pieces) > 0 })
}

// fragment returns the next piece of some call, or none if that call is complete.
func (g *gpt) fragment() []string {
	i := 0
	if g.begun < len(g.calls) && (g.begun == 0 || g.one(3)) {
		i = g.begun
		g.begun++
	} else {
		i = g.r.IntN(g.begun)
	}
	pieces := g.calls[i]
	if len(pieces) == 0 {
		return nil
	}
	g.calls[i] = pieces[1:]
	return pieces[:1]
}

// call returns the pieces of a call: id and name first, then its arguments.
func (g *gpt) call(i int) []string {
	piece := func(members ...member) string {
		return g.message(append([]member{{"index", strconv.Itoa(i)}}, members...)...)
	}
	head := []member{
		{"id", g.quote(fmt.Sprintf("call_%d", i))},
		{"type", `"function"`},
		{"function", g.message(member{"name", g.quote("tool_" + strconv.Itoa(i))}, member{"arguments", `""`})},
	}
	if g.compatible && g.one(4) {
		head = append(head, member{"extra_content", g.anyObject(2)})
	}
	pieces := []string{piece(head...)}
	if g.one(20) { // a name in two pieces
		pieces = append(pieces, piece(member{"function", g.object(member{"name", `"_more"`})}))
	}
	if g.one(8) {
		return pieces // without arguments
	}
	for _, args := range g.cut(g.anyObject(3)) {
		pieces = append(pieces, piece(member{"function", g.object(member{"arguments", g.quote(args)})}))
	}
	return pieces
}

// reasoning writes thoughts in one of the forms that servers send them in.
func (g *gpt) reasoning() {
	form := g.r.IntN(5)
	kind, text := `"reasoning.text"`, "text"
	if g.one(3) {
		kind, text = `"reasoning.summary"`, "summary"
	}
	for range 1 + g.r.IntN(8) {
		said := g.quote("t" + g.words())
		detail := g.array(g.object(member{"type", kind}, member{text, said}, member{"format", `"unknown"`}, member{"index", "0"}))
		var members []member
		switch form {
		case 0: // DeepSeek and vLLM
			members = []member{{"reasoning_content", said}}
		case 1:
			members = []member{{"reasoning", said}}
		case 2: // the same under two names
			members = []member{{"reasoning", said}, {"reasoning_content", said}}
		case 3: // OpenRouter
			members = []member{{"reasoning", said}, {"reasoning_details", detail}}
		default:
			members = []member{{"reasoning_details", detail}}
		}
		g.chunk(g.object(append([]member{{"role", `"assistant"`}, {"content", `""`}}, members...)...), "null")
	}
	if form < 3 {
		return
	}
	last := g.array(g.object(member{"type", kind}, member{"signature", g.quote("S" + g.words())}, member{"index", "0"}))
	if g.one(2) {
		last = g.array(
			g.object(member{"type", `"reasoning.encrypted"`}, member{"data", `"AAAA"`}, member{"index", "1"}),
			g.object(member{"type", `"reasoning.encrypted"`}, member{"data", `"BBBB"`}, member{"index", "1"}),
		)
	}
	g.chunk(g.object(member{"reasoning_details", last}), "null")
}

// extras are members that OpenAI's own API does not have.
func (g *gpt) extras() []member {
	var members []member
	if g.one(30) {
		members = append(members, member{"annotations", g.array(g.object(member{"type", `"url_citation"`},
			member{"url_citation", g.object(member{"url", g.quote("https://example.com/" + g.words())}, member{"title", g.quote(g.words())})}))})
	}
	if g.one(30) {
		members = append(members, member{"x_text", g.quote(g.words())})
	}
	if g.one(30) {
		members = append(members, member{"x_list", g.array(g.value(1))})
	}
	if g.one(30) {
		members = append(members, member{"x_object", g.anyObject(2)})
	}
	return members
}
