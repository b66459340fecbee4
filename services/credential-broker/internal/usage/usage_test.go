package usage_test

import (
	"testing"

	"signalbox.dev/pkg/price"
	"signalbox.dev/services/credential-broker/internal/usage"
)

var (
	anthropic = &usage.Places{
		At:     []usage.Path{{"message", "usage"}, {"usage"}},
		Input:  []usage.Path{{"input_tokens"}, {"cache_read_input_tokens"}, {"cache_creation_input_tokens"}},
		Output: []usage.Path{{"output_tokens"}}, CacheRead: []usage.Path{{"cache_read_input_tokens"}}, CacheWrite: []usage.Path{{"cache_creation_input_tokens"}},
	}
	openai = &usage.Places{
		At:     []usage.Path{{"usage"}, {"response", "usage"}},
		Input:  []usage.Path{{"prompt_tokens"}, {"input_tokens"}},
		Output: []usage.Path{{"completion_tokens"}, {"output_tokens"}}, CacheRead: []usage.Path{{"prompt_tokens_details", "cached_tokens"}, {"input_tokens_details", "cached_tokens"}},
	}
)

func TestTally(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		places *usage.Places
		data   []string
		want   price.Tokens
	}{
		{"nothing", anthropic, nil, price.Tokens{}},
		{"no places", nil, []string{`{"usage":{"input_tokens":1}}`}, price.Tokens{}},
		{"stream", anthropic, []string{
			`{"type":"message_start","message":{"id":"m","usage":{"input_tokens":10,"cache_read_input_tokens":100,"cache_creation_input_tokens":7,"output_tokens":1}}}`,
			`{"type":"message_delta","delta":{},"usage":{"output_tokens":42}}`,
		}, price.Tokens{Input: 117, CacheRead: 100, CacheWrite: 7, Output: 42}},
		{"counted again", anthropic, []string{
			`{"message":{"usage":{"input_tokens":10,"cache_read_input_tokens":100,"output_tokens":1}}}`,
			`{"usage":{"output_tokens":5}}`, `{"usage":{"input_tokens":20,"output_tokens":9}}`,
		}, price.Tokens{Input: 120, CacheRead: 100, Output: 9}},
		{"whole", anthropic, []string{`{"type":"message","content":[{"usage":{"input_tokens":9}}],"usage":{"input_tokens":3,"output_tokens":4}}`}, price.Tokens{Input: 3, Output: 4}},
		{"chat", openai, []string{`{"choices":[],"usage":{"prompt_tokens":8,"completion_tokens":2,"total_tokens":10,"prompt_tokens_details":{"cached_tokens":4}}}`}, price.Tokens{Input: 8, CacheRead: 4, Output: 2}},
		{"chunks without", openai, []string{`{"choices":[],"usage":null}`, `{"choices":[{}]}`}, price.Tokens{}},
		{"responses", openai, []string{`{"type":"response.completed","response":{"usage":{"input_tokens":8,"output_tokens":2}}}`}, price.Tokens{Input: 8, Output: 2}},
		{"both names", openai, []string{`{"usage":{"prompt_tokens":111,"completion_tokens":22,"input_tokens":111,"output_tokens":22,"prompt_tokens_details":{"cached_tokens":5},"input_tokens_details":{"cached_tokens":5}}}`}, price.Tokens{Input: 111, CacheRead: 5, Output: 22}},
		{"both names, one of them empty", openai, []string{`{"usage":{"prompt_tokens":111,"completion_tokens":0,"input_tokens":0,"output_tokens":22}}`}, price.Tokens{Input: 111, Output: 22}},
		{"one name, then the other", openai, []string{`{"usage":{"prompt_tokens":1}}`, `{"usage":{"input_tokens":3}}`}, price.Tokens{Input: 3}},
		{"in two places", openai, []string{`{"usage":{"prompt_tokens":4},"response":{"usage":{"input_tokens":4}}}`}, price.Tokens{Input: 4}},
		{"nonsense", openai, []string{`{"usage":{"prompt_tokens":-8,"completion_tokens":1e3}}`, `{"usage":{"prompt_tokens":"7","completion_tokens":99999999999999999999}}`, `{"usage":[`, `{"usage":7}`, ``, `[1]`}, price.Tokens{}},
		{"escaped and twice", openai, []string{`{"us\u0061ge":{"prompt_tokens":1,"prompt_tokens":2}}`}, price.Tokens{Input: 2}},
	}
	for _, tt := range tests {
		tally := usage.NewTally(tt.places)
		for _, d := range tt.data {
			tally.Read([]byte(d))
		}
		if got := tally.Sum(); got != tt.want {
			t.Errorf("%s: Sum() = %+v, want %+v", tt.name, got, tt.want)
		}
	}
}
