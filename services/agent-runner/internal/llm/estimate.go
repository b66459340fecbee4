package llm

import "signalbox.dev/services/agent-runner/internal/modelmsg"

// bytesPerToken is roughly the average of current tokenizers for English text.
const bytesPerToken = 4

// Estimate completes the usage of res, the answer to req as far as it has arrived, if the
// provider has not reported the final count (res.Estimated). A reported output is a lower
// bound: Anthropic reports one output token at the start of an answer and the rest at its
// end, OpenAI nothing before the end. A reported input is exact.
func (s *Stream) Estimate(req *Request, res *Response) {
	if !res.Estimated {
		return
	}
	u := &res.Usage
	u.OutputTokens = max(u.OutputTokens, tokens(s.received))
	if u.InputTokens == 0 && u.OutputTokens > 0 { // there is output, so the prompt was read
		u.InputTokens = tokens(req.textBytes())
	}
	res.Estimated = u.OutputTokens > 0 || u.InputTokens > 0
}

func tokens(bytes int) int64 { return int64((bytes + bytesPerToken - 1) / bytesPerToken) }

// textBytes returns the size of the prompt without the data of files, whose tokens do not
// follow from their size.
func (r *Request) textBytes() int {
	n := 0
	for _, b := range r.System {
		n += len(b.Text)
	}
	for _, t := range r.Tools {
		n += len(t.Name) + len(t.Description) + len(t.Schema) + len(t.Definition)
	}
	for _, m := range r.Messages {
		n += modelmsg.TextBytes(m.Content)
	}
	return n
}
