// Package preset has the kinds of agents as data: name, prompt, limits and tools. Some ship with
// the product (each is a file in presets), and a workspace can add its own (Store).
package preset

import (
	"embed"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"

	"signalbox.dev/pkg/fault"
)

// Default is the preset of a session that names none.
const Default = "workspace"

// Preset is a kind of agent.
type Preset struct {
	Name string `yaml:"name" json:"name"`
	// Prompt parts open the system prompt, in order.
	Prompt []string `yaml:"prompt" json:"prompt"`
	// MaxSteps is how many model calls a run may make, 1 to 50.
	MaxSteps int `yaml:"max_steps" json:"max_steps"`
	// MaxOutputTokens of one model call; 0 leaves it to the provider.
	MaxOutputTokens int `yaml:"max_output_tokens" json:"max_output_tokens"`
	// Tools are names, or prefixes that end in *.
	Tools []string `yaml:"tools" json:"tools"`
	// Own means that it is the workspace's, not a shipped one.
	Own bool `yaml:"-" json:"-"`
}

// Enables reports whether the preset's tools include name.
func (p *Preset) Enables(name string) bool { return Includes(p.Tools, name) }

// Excluded returns the pattern that an entry of a selection excludes; ok is false if the entry
// excludes none.
func Excluded(entry string) (pattern string, ok bool) { return strings.CutPrefix(entry, "-") }

// Includes reports whether a selection includes a tool: one of its patterns matches the name, and
// none of those that it excludes.
func Includes(selection []string, name string) (included bool) {
	for _, entry := range selection {
		pattern, excluded := Excluded(entry)
		switch {
		case !Match(pattern, name):
		case excluded:
			return false
		default:
			included = true
		}
	}
	return included
}

// Resolve returns a selection that may depend on another one: nil stands for the other, and one
// that only excludes tools takes them from the other.
func Resolve(selection, other []string) []string {
	switch {
	case selection == nil:
		return other
	case len(selection) > 0 && !slices.ContainsFunc(selection, func(entry string) bool { _, excluded := Excluded(entry); return !excluded }):
		return slices.Concat(other, selection)
	}
	return selection
}

// Match reports whether a tool's name matches a pattern, which is a name, or a prefix and *.
func Match(pattern, name string) bool {
	if prefix, ok := strings.CutSuffix(pattern, "*"); ok {
		return strings.HasPrefix(name, prefix)
	}
	return pattern == name
}

// Set is a set of presets.
type Set struct{ byName map[string]*Preset }

//go:embed presets/*.yaml
var builtin embed.FS

// Builtin returns the presets that ship with the product.
func Builtin() (*Set, error) {
	sub, err := fs.Sub(builtin, "presets")
	if err != nil {
		return nil, err
	}
	return Load(sub)
}

// Load reads every .yaml file of a folder. Unknown or missing fields and values out of range
// are errors that name the file.
func Load(dir fs.FS) (*Set, error) {
	files, err := fs.Glob(dir, "*.yaml")
	if err != nil {
		return nil, fmt.Errorf("list presets: %w", err)
	}
	s := &Set{byName: map[string]*Preset{}}
	for _, file := range files {
		p, err := read(dir, file)
		if err != nil {
			return nil, fmt.Errorf("preset %s: %w", file, err)
		}
		s.byName[p.Name] = p
	}
	if s.byName[Default] == nil {
		return nil, fmt.Errorf("there is no preset %q", Default)
	}
	return s, nil
}

func read(dir fs.FS, file string) (*Preset, error) {
	b, err := fs.ReadFile(dir, file)
	if err != nil {
		return nil, err
	}
	p := &Preset{}
	if err := yaml.UnmarshalWithOptions(b, p, yaml.Strict()); err != nil {
		return nil, err
	}
	switch {
	case p.Name == "" || p.Name != strings.TrimSuffix(path.Base(file), ".yaml"):
		return nil, fmt.Errorf("name is %q: it must be the file's name", p.Name)
	case p.MaxSteps < 1 || p.MaxSteps > 50:
		return nil, fmt.Errorf("max_steps is %d: it must be 1 to 50", p.MaxSteps)
	case p.MaxOutputTokens < 0:
		return nil, fmt.Errorf("max_output_tokens is %d: it must not be negative", p.MaxOutputTokens)
	}
	return p, nil
}

// Get returns the preset with a name, Default for an empty one.
func (s *Set) Get(name string) (*Preset, error) {
	if name == "" {
		name = Default
	}
	p, ok := s.byName[name]
	if !ok {
		return nil, unknown(name, s.Names())
	}
	return p, nil
}

func unknown(name string, known []string) error {
	return fault.New(fault.Invalid, "preset %q is not known: use one of %s", name, strings.Join(known, ", "))
}

// Names returns the presets' names, sorted.
func (s *Set) Names() []string { return slices.Sorted(maps.Keys(s.byName)) }
