package llm

import "signalbox.dev/services/agent-runner/internal/modelmsg"

// bytesPerToken is what the tokenizers of current models come to, roughly, in English.
const bytesPerToken = 4

// Estimate completes the usage of res, the answer to req as far as the stream brought it,
// if the provider has not reported the final count (res.Estimated). What it has reported is
// a lower bound: Anthropic counts one output token at the start of an answer and the rest at
// its end, OpenAI nothing before the end. Reported input is exact and stays.
func (s *Stream) Estimate(req *Request, res *Response) {
	if !res.Estimated {
		return
	}
	u := &res.Usage
	u.OutputTokens = max(u.OutputTokens, tokens(s.received))
	if u.InputTokens == 0 && u.OutputTokens > 0 { // who answers has read the prompt
		u.InputTokens = tokens(req.textBytes())
	}
	res.Estimated = u.OutputTokens > 0 || u.InputTokens > 0
}

func tokens(bytes int) int64 { return int64((bytes + bytesPerToken - 1) / bytesPerToken) }

// textBytes returns the size of the prompt. The data of files are left out: what tokens they
// take does not follow from their size.
func (r *Request) textBytes() int {
	n := 0
	for _, b := range r.System {
		n += len(b.Text)
	}
	for _, t := range r.Tools {
		n += len(t.Name) + len(t.Description) + len(t.Schema) + len(t.Definition)
	}
	for _, m := range r.Messages {
		n += len(m.Content)
		parts, _ := modelmsg.Parse(m.Content) // it was parsed to be sent
		for _, p := range parts {
			n -= len(p.Data)
		}
	}
	return n
}
