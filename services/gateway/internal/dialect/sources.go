package dialect

import (
	"encoding/json"

	runv1 "signalbox.dev/proto/signalbox/run/v1"
)

// maxSources bounds the sources of a step, as in the run log.
const maxSources = 512

// sources are the URLs of a step's sources. The log has an event for each; stored messages have them
// in the results of the provider's searches, and in the citations of text.
type sources map[string]bool

// of returns the sources that a part of an answer adds.
func (s sources) of(p modelPart) (added []*runv1.Source) {
	for _, f := range p.pages() {
		if f.URL == "" || s[f.URL] || len(s) >= maxSources {
			continue
		}
		s[f.URL] = true
		added = append(added, &runv1.Source{Url: f.URL, Title: f.Title})
	}
	return added
}

type page struct {
	URL   string `json:"url"`
	Title string `json:"title"`
}

// pages returns the pages that a provider's search has found, or that text cites. It returns none
// of what has another form.
func (p *modelPart) pages() (found []page) {
	switch {
	case p.Type == "tool-result" && p.Output != nil:
		var results []json.RawMessage
		_ = json.Unmarshal(p.Output.Value, &results)
		for _, r := range results {
			found = append(found, pageOf(r))
		}
	case p.Type == "text" && p.ProviderOptions != nil:
		var options struct {
			Anthropic struct {
				Citations []json.RawMessage `json:"citations"`
			} `json:"anthropic"`
			OpenAI struct {
				Annotations []struct {
					Citation json.RawMessage `json:"url_citation"`
				} `json:"annotations"`
			} `json:"openai"`
		}
		_ = json.Unmarshal(p.ProviderOptions, &options)
		for _, c := range options.Anthropic.Citations {
			found = append(found, pageOf(c))
		}
		for _, a := range options.OpenAI.Annotations {
			found = append(found, pageOf(a.Citation))
		}
	}
	return found
}

func pageOf(v json.RawMessage) (p page) {
	_ = json.Unmarshal(v, &p)
	return p
}
