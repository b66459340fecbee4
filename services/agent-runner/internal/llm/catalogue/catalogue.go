// Package catalogue has the limits and capabilities of models (package price has their
// prices). They are data in models.json, which an operator can extend and override with a
// file of the same form. A model that is not listed gets the values of the longest family
// that is a prefix of its id, or cautious defaults.
//
// A Catalogue is immutable and safe for concurrent use.
package catalogue

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
)

//go:embed models.json
var builtin []byte

const maxFile = 1 << 20

// The defaults of an unknown model.
const (
	unknownContext   = 128_000
	unknownMaxOutput = 8_192
)

// Model has the limits and capabilities of one model.
type Model struct {
	Provider string `json:"provider"`
	ID       string `json:"id"`
	Name     string `json:"name"` // for people

	Context       int `json:"context"`       // tokens, prompt and answer together
	MaxOutput     int `json:"maxOutput"`     // tokens it can write
	DefaultOutput int `json:"defaultOutput"` // tokens to ask for; 0: MaxOutput, at most 16,384

	Reasoning   bool     `json:"reasoning"`
	Images      bool     `json:"images"`
	Structured  bool     `json:"structured,omitempty"`  // answers in JSON of a schema that the provider enforces
	ServerTools []string `json:"serverTools,omitempty"` // tools that the provider runs

	// Default marks the model of sessions that name only the provider.
	Default bool `json:"default,omitempty"`
	// Family makes the entry apply to all models of the provider whose id begins with ID.
	Family bool `json:"family,omitempty"`
}

// HasServerTool reports whether the provider runs the tool for this model.
func (m *Model) HasServerTool(name string) bool { return slices.Contains(m.ServerTools, name) }

// Catalogue is a set of models.
type Catalogue struct {
	models []Model // sorted by provider and id
	tools  map[string]map[string]json.RawMessage
}

// New returns the built-in catalogue with the entries of override, which may be empty. They
// replace entries with the same provider, id and Family. Errors name line and field.
func New(override []byte) (*Catalogue, error) {
	base, err := read(builtin)
	if err != nil {
		return nil, fmt.Errorf("read the built-in model catalogue: %w", err)
	}
	c := &Catalogue{tools: make(map[string]map[string]json.RawMessage)}
	c.add(base)
	if len(bytes.TrimSpace(override)) > 0 {
		own, err := read(override)
		if err != nil {
			return nil, fmt.Errorf("read the operator's model catalogue: %w", err)
		}
		c.add(own)
	}
	slices.SortFunc(c.models, func(a, b Model) int {
		return strings.Compare(a.Provider+"\x00"+a.ID, b.Provider+"\x00"+b.ID)
	})
	return c, nil
}

// Load is like New with the override in a file. An empty path means no override.
func Load(path string) (*Catalogue, error) {
	if path == "" {
		return New(nil)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open the model catalogue: %w", err)
	}
	defer func() { _ = f.Close() }()
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, fmt.Errorf("read the model catalogue: %w", err)
	}
	if len(data) > maxFile {
		return nil, fmt.Errorf("the model catalogue %s is over %d bytes", path, maxFile)
	}
	c, err := New(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return c, nil
}

func (c *Catalogue) add(f *file) {
	for _, m := range f.Models {
		m.fill()
		if i := slices.IndexFunc(c.models, func(o Model) bool { return o.Provider == m.Provider && o.ID == m.ID && o.Family == m.Family }); i >= 0 {
			c.models[i] = m
		} else {
			c.models = append(c.models, m)
		}
	}
	for provider, tools := range f.ServerTools {
		if c.tools[provider] == nil {
			c.tools[provider] = make(map[string]json.RawMessage)
		}
		maps.Copy(c.tools[provider], tools)
	}
}

func (m *Model) fill() {
	if m.Name == "" {
		m.Name = m.ID
	}
	if m.DefaultOutput == 0 {
		m.DefaultOutput = min(m.MaxOutput, 16_384)
	}
}

// Lookup returns a model's entry, or its family's, or the defaults. known is true if the model
// itself is listed.
func (c *Catalogue) Lookup(provider, id string) (m Model, known bool) {
	m, listed, ok := c.find(provider, id)
	if !ok {
		m = Model{Provider: provider, ID: id, Context: unknownContext, MaxOutput: unknownMaxOutput}
		m.fill()
	}
	return m, listed
}

// Describe returns a model's entry or its family's. ok is false if there is neither.
func (c *Catalogue) Describe(provider, id string) (m Model, ok bool) {
	m, _, ok = c.find(provider, id)
	return m, ok
}

func (c *Catalogue) find(provider, id string) (m Model, listed, ok bool) {
	best := -1
	for i := range c.models {
		o := &c.models[i]
		if o.Provider != provider {
			continue
		}
		if o.ID == id && !o.Family {
			return *o, true, true
		}
		if o.Family && strings.HasPrefix(id, o.ID) && (best < 0 || len(o.ID) > len(c.models[best].ID)) {
			best = i
		}
	}
	if best < 0 {
		return Model{}, false, false
	}
	m = c.models[best]
	m.ID, m.Name, m.Family = id, id, false
	return m, false, true
}

// Models returns the listed models of a provider, or of all providers if it is empty, sorted.
func (c *Catalogue) Models(provider string) []Model {
	var out []Model
	for i := range c.models {
		if m := &c.models[i]; !m.Family && (provider == "" || m.Provider == provider) {
			out = append(out, *m)
		}
	}
	return out
}

// ServerTool returns the definition of a tool that a provider runs, for
// llm.ToolDef.Definition.
func (c *Catalogue) ServerTool(provider, name string) (json.RawMessage, bool) {
	def, ok := c.tools[provider][name]
	return slices.Clone(def), ok
}
