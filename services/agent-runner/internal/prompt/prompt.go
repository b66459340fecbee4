// Package prompt builds model requests from the system prompt, the conversation and the tools.
package prompt

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"time"

	"signalbox.dev/pkg/id"
	toolv1 "signalbox.dev/proto/signalbox/tool/v1"
	"signalbox.dev/services/agent-runner/internal/llm"
	"signalbox.dev/services/agent-runner/internal/llm/catalogue"
	"signalbox.dev/services/agent-runner/internal/modelmsg"
	"signalbox.dev/services/agent-runner/internal/preset"
	"signalbox.dev/services/agent-runner/internal/run"
)

// Tools returns the enabled tools: those that the selections of the run, its session and the
// preset include, and those that are always enabled. ofRun may depend on ofSession, and that on
// the preset; see preset.Resolve.
func Tools(catalogue []*toolv1.Tool, ofRun, ofSession []string, p *preset.Preset) []*toolv1.Tool {
	var enabled []*toolv1.Tool
	selected := preset.Resolve(ofRun, preset.Resolve(ofSession, p.Tools))
	for _, t := range catalogue {
		if preset.Includes(selected, t.GetName()) || t.GetAlways() {
			enabled = append(enabled, t)
		}
	}
	return enabled
}

const providerSource = "provider"

// IsProvider reports whether the model's provider runs a tool.
func IsProvider(t *toolv1.Tool) bool { return t.GetSource() == providerSource }

// WhyNot says why a tool cannot be used with a model now; empty if it can. serverTools is that of
// Input.
func WhyNot(t *toolv1.Tool, provider string, m *catalogue.Model, serverTools func(provider, name string) (json.RawMessage, bool)) string {
	if !t.GetAvailable() && t.GetUnavailableReason() != "" {
		return t.GetUnavailableReason()
	}
	if t.GetReturnsImage() && !m.Images {
		return "the model " + m.ID + " cannot see pictures"
	}
	if !IsProvider(t) {
		return ""
	}
	if _, ok := serverTools(provider, t.GetName()); ok && m.HasServerTool(t.GetName()) {
		return ""
	}
	return "the provider of the model " + m.ID + " has none"
}

// Input is the input of Build.
type Input struct {
	Run   *run.Run
	Step  int
	Model catalogue.Model
	// Dialect is the dialect of the model's provider.
	Dialect string
	// ServerTools returns the definition of a tool that the provider runs itself.
	ServerTools func(provider, name string) (json.RawMessage, bool)
	Preset      *preset.Preset
	Session     run.Settings
	Tools       []*toolv1.Tool
	// Messages are those after the session's summary, if it has one.
	Messages []run.Message
	// Now gives the date in the system prompt.
	Now time.Time
	// Format tells the model the form of its final answer; empty for free text.
	Format string
	// Schema is that of the final answer; empty for free text. The provider enforces it if the
	// model can answer so.
	Schema json.RawMessage
	// Repair tells the model what is wrong with its last answer; empty if nothing is.
	Repair string
	// Continue is true if the provider paused in its last answer.
	Continue bool
}

// Build returns the request for a run's next step.
func Build(in Input) *llm.Request {
	req := &llm.Request{
		Model:           in.Run.Model,
		System:          system(in),
		MaxOutputTokens: MaxOutput(in.Preset, &in.Model),
		Continue:        in.Continue,
		Meta: llm.Meta{
			User:    in.Run.CreatedBy.String(),
			Session: in.Run.Session.String(),
			IDSeed:  in.Run.ID.String() + "/" + strconv.Itoa(in.Step),
		},
	}
	if in.Model.Structured {
		req.Format = in.Schema
	}
	for _, t := range in.Tools {
		if IsProvider(t) {
			if WhyNot(t, in.Run.Provider, &in.Model, in.ServerTools) == "" {
				def, _ := in.ServerTools(in.Run.Provider, t.GetName())
				req.Tools = append(req.Tools, llm.ToolDef{Name: t.GetName(), Provider: in.Dialect, Definition: def})
			}
			continue
		}
		req.Tools = append(req.Tools, llm.ToolDef{Name: t.GetName(), Description: t.GetDescription(), Schema: json.RawMessage(t.GetInputSchemaJson())})
	}
	if in.Session.Summary != nil {
		text := strings.ReplaceAll(in.Session.Summary.Text, "</summary", "<\\/summary")
		content, _ := json.Marshal(summaryNote + text + "\n</summary>") // a string always marshals
		req.Messages = append(req.Messages, llm.Message{Role: llm.User, Content: content})
	}
	for _, m := range in.Messages {
		msg := llm.Message{Role: llm.Role(m.Role), Content: m.Content}
		if msg.Role == llm.Tool && !in.Model.Images {
			msg.Content = modelmsg.WithoutPictures(m.Content)
		}
		if m.RawDialect != nil && len(m.Raw) > 0 {
			msg.Raw = llm.Raw{Dialect: *m.RawDialect, Blocks: m.Raw}
		}
		req.Messages = append(req.Messages, msg)
	}
	if in.Repair != "" {
		content, _ := json.Marshal(in.Repair) // a string always marshals
		req.Messages = append(req.Messages, llm.Message{Role: llm.User, Content: content})
	}
	return req
}

// MaxOutput returns the most tokens that a step's answer may have: the preset's limit, bounded by
// the model's, or the model's default.
func MaxOutput(p *preset.Preset, m *catalogue.Model) int {
	if p.MaxOutputTokens > 0 {
		return min(p.MaxOutputTokens, m.MaxOutput)
	}
	return m.DefaultOutput
}

// system returns the system prompt. The part that never changes comes first, for the
// provider's prompt cache; the date changes once a day, and so may what is unavailable.
func system(in Input) []llm.SystemBlock {
	parts := slices.Clone(in.Preset.Prompt)
	if g := guidance(in.Tools); g != "" {
		parts = append(parts, g)
	}
	if s := strings.TrimSpace(in.Session.SystemPrompt); s != "" {
		parts = append(parts, s)
	}
	if in.Format != "" {
		parts = append(parts, in.Format)
	}
	return []llm.SystemBlock{
		{Text: strings.Join(parts, "\n\n"), Cache: true},
		{Text: "Today is " + date(in.Now, in.Run.Timezone) + "." + unavailable(in) + elsewhere(in)},
	}
}

// elsewhere tells the model of calls whose effects it does not see in the conversation. What they
// read and wrote, and names of tools that it does not have, may be of strangers, so it is not told.
func elsewhere(in Input) string {
	if len(in.Session.Elsewhere) == 0 {
		return ""
	}
	var made []string
	others := false
	for _, c := range in.Session.Elsewhere {
		if !slices.ContainsFunc(in.Tools, func(t *toolv1.Tool) bool { return t.GetName() == c.Tool }) {
			others = true
			continue
		}
		text := c.Tool
		if d, err := id.Parse[id.Document](c.Document); err == nil {
			text += " (document " + d.String() + ")"
		}
		if !slices.Contains(made, text) && len(made) < maxElsewhere {
			made = append(made, text)
		}
	}
	if others {
		made = append(made, "calls of other tools")
	}
	return "\n\nOn other branches of this conversation, which you do not see, you have already done this, and it was not undone: " +
		strings.Join(made, ", ") + ". Documents are as those left them: read one again before you rely on it or change it."
}

// maxElsewhere bounds the calls of other branches that the model is told of.
const maxElsewhere = 20

// unavailable tells the model of enabled tools that cannot be used, so that it can say so.
func unavailable(in Input) string {
	var b strings.Builder
	for _, t := range in.Tools {
		if why := WhyNot(t, in.Run.Provider, &in.Model, in.ServerTools); why != "" {
			b.WriteString("\n- " + t.GetName() + ": " + why)
		}
	}
	if b.Len() == 0 {
		return ""
	}
	return "\n\nThese tools cannot be used now. If you would need one, say so and why:" + b.String()
}

func guidance(tools []*toolv1.Tool) string {
	var lines []string
	for _, t := range tools {
		if g := strings.TrimSpace(t.GetGuidance()); g != "" && !slices.Contains(lines, g) {
			lines = append(lines, g)
		}
	}
	if len(lines) == 0 {
		return ""
	}
	return "How to use your tools:\n" + strings.Join(lines, "\n")
}

func date(now time.Time, zone string) string {
	loc, err := time.LoadLocation(zone)
	if err != nil {
		loc = time.UTC // an unknown name
	}
	return now.In(loc).Format("Monday, 2 January 2006")
}
