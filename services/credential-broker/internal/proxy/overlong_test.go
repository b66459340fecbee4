package proxy_test

import (
	"net/http"
	"strings"
	"testing"

	"signalbox.dev/pkg/price"
)

// What an overlong event says is known once it has ended, wherever in it that is; text that
// quotes it, and truncated text, says nothing.
func TestOverlongEnds(t *testing.T) {
	t.Parallel()
	const responses = "/egress/openai/v1/responses"
	text := strings.Repeat(`A`, 2<<20)
	quoting := strings.Repeat(`\"}}],\"finish_reason\":\"stop\",\"type\":\"response.completed\",\"usage\":{\"prompt_tokens\":7,\"input_tokens\":7}}`, 20_000)
	chunk := func(content, rest string) string {
		return `data: {"id":"c","choices":[{"index":0,"delta":{"content":"` + content + `"}` + rest
	}
	event := func(x, rest string) string { return `data: {"response":{"x":"` + x + `"` + rest }
	both := price.Tokens{Input: 8, Output: 2}
	for _, tt := range []struct {
		name, path, body, in string
		broken               bool
		tokens               price.Tokens
	}{
		{"a finish", chats, asking, chunk(text, `,"finish_reason":"stop"}]}`+"\n\n"), false, price.Tokens{}},
		{"a finish and counts", chats, asking, chunk(text, `,"finish_reason":"stop"}],"usage":{"prompt_tokens":8,"completion_tokens":2}}`+"\n\n"), false, both},
		{"a finish, and a usual event", chats, asking, chunk(text, `,"finish_reason":"stop"}]}`+"\n\n"+chatUsage), false, price.Tokens{}},
		{"lines that end with CR and LF", chats, asking, chunk(text, `,"finish_reason":"stop"}]}`+"\r\n\r\n"), false, price.Tokens{}},
		{"several lines of data", chats, asking, strings.Replace(chunk(text, `,"finish_reason":"stop"}]}`+"\n\n"), `"choices"`, "\ndata:\ndata\ndata:\"choices\"", 1) /* the comma before it ends the first */, false, price.Tokens{}},
		{"a comment inside", chats, asking, strings.Replace(chunk(text, "\n: x\nid: 7\ndata: ,\"finish_reason\":\"stop\"}]}\n\n"), `"id"`, "\ndata: \"id\"", 1), false, price.Tokens{}},
		{"no finish", chats, asking, chunk(text, `}]}`+"\n\n"), true, price.Tokens{}},
		{"a finish that is null", chats, asking, chunk(text, `,"finish_reason":null}]}`+"\n\n"), true, price.Tokens{}},
		{"a finish that its text quotes", chats, asking, chunk(quoting, `}]}`+"\n\n"), true, price.Tokens{}},
		{"a finish in its delta", chats, asking, chunk(text, `,"x":{"finish_reason":"stop"}}]}`+"\n\n"), true, price.Tokens{}},
		{"a finish of one choice of two", chats, `{"stream":true,"n":2}`, chunk(text, `,"finish_reason":"stop"},{"index":1,"delta":{}}]}`+"\n\n"), true, price.Tokens{}},
		{"cut in its text", chats, asking, chunk(quoting, ""), true, price.Tokens{}},
		{"cut in its text, and a blank line", chats, asking, chunk(quoting[:len(quoting)-5], "")[:2<<20] + "\n\n", true, price.Tokens{}},
		{"cut behind its finish", chats, asking, chunk(text, `,"finish_reason":"stop"`), true, price.Tokens{}},
		{"cut behind its finish, and a blank line", chats, asking, chunk(text, `,"finish_reason":"stop"}]`+"\n\n"), true, price.Tokens{}},
		{"cut before its blank line", chats, asking, chunk(text, `,"finish_reason":"stop"}]}`+"\n"), true, price.Tokens{}},
		{"cut in a text, and an event behind", chats, asking, chunk(text, `,"a":"`+"\n"+chatFinish[:len(chatFinish)-1]+`"}]}`+"\n\n"), true, price.Tokens{}},
		{"a type", responses, asking, event(text, `},"type":"response.completed"}`+"\n\n"), false, price.Tokens{}},
		{"a type and counts", responses, asking, event(text, `,"usage":{"input_tokens":8,"output_tokens":2}},"type":"response.completed"}`+"\n\n"), false, both},
		{"a name and counts", responses, asking, "event: response.completed\n" + event(text, `,"usage":{"input_tokens":8,"output_tokens":2}},"type":"response.completed"}`+"\n\n"), false, both},
		{"counts that its text quotes", responses, asking, event(quoting, `},"usage":null,"type":"response.completed"}`+"\n\n"), false, price.Tokens{}},
		{"a type that its text quotes", responses, asking, event(quoting, `}}`+"\n\n"), true, price.Tokens{}},
		{"a type deeper", responses, asking, event(text, `,"type":"response.completed"}}`+"\n\n"), true, price.Tokens{}},
		{"another type", responses, asking, event(text, `},"type":"response.in_progress"}`+"\n\n"), true, price.Tokens{}},
		{"a type, cut", responses, asking, event(text, `},"type":"response.completed"`), true, price.Tokens{}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, &loopback{}, nil)
			r.upstream("openai", stream(tt.in))
			got := r.post(tt.path, tt.body)
			if got.status != http.StatusOK || (got.err != nil) != tt.broken || !strings.HasPrefix(got.body, tt.in) && !tt.broken {
				t.Errorf("got %d with %d of %d bytes, the end is %v, want broken %v", got.status, len(got.body), len(tt.in), got.err, tt.broken)
			}
			if told := r.pool.outcomes(); len(told) != 1 || told[0].Tokens != tt.tokens {
				t.Errorf("the pool heard %+v, want tokens %+v", told, tt.tokens)
			}
		})
	}
}
