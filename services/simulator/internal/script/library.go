package script

import (
	_ "embed" // the built-in script
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
)

//go:embed builtin.yaml
var builtin []byte

// ModelPrefix begins a model id that selects a script: sim/<script>, or
// sim/<script>/<anything>.
const ModelPrefix = "sim/"

// DefaultName is the script that answers every model id without the prefix.
const DefaultName = "default"

// BuiltinName is the fixed name of the built-in script.
const BuiltinName = "builtin"

// maxScripts bounds a library.
const maxScripts = 1000

// Library holds scripts by name. It is safe for concurrent use.
type Library struct {
	mu      sync.RWMutex // guards scripts
	scripts map[string]*Script
	first   map[string]*Script // the scripts that Open loaded, for Reset
}

// Open returns a library with the built-in script and the scripts of path: a file, a directory
// of *.yaml files, or "" for none. The name of a script is its name field or else its file
// name. A single file also becomes the default script.
func Open(path string) (*Library, error) {
	own, err := Parse("builtin.yaml", builtin)
	if err != nil {
		return nil, fmt.Errorf("load the built-in script: %w", err)
	}
	own.Name = BuiltinName
	l := &Library{scripts: map[string]*Script{BuiltinName: own, DefaultName: own}}
	if path != "" {
		if err := l.load(path); err != nil {
			return nil, fmt.Errorf("load scripts: %w", err)
		}
	}
	l.first = maps.Clone(l.scripts)
	return l, nil
}

func (l *Library) load(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		s, err := l.loadFile(path)
		if err == nil {
			l.scripts[DefaultName] = s
		}
		return err
	}
	files, err := filepath.Glob(filepath.Join(path, "*.yaml"))
	if err != nil {
		return err
	}
	if len(files) == 0 {
		return fmt.Errorf("%s: no *.yaml file in this directory", path)
	}
	for _, f := range files {
		if _, err := l.loadFile(f); err != nil {
			return err
		}
	}
	return nil
}

func (l *Library) loadFile(path string) (*Script, error) {
	source, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	s, err := Parse(path, source)
	if err != nil {
		return nil, err
	}
	if s.Name == "" {
		s.Name = strings.TrimSuffix(filepath.Base(path), filepath.Ext(path))
	}
	if !ValidName(s.Name) {
		return nil, fmt.Errorf("%s: %q is not a script name: rename the file or add a name field", path, s.Name)
	}
	if len(l.scripts) >= maxScripts {
		return nil, fmt.Errorf("%s: more than %d scripts", path, maxScripts)
	}
	l.scripts[s.Name] = s
	return s, nil
}

// ErrFull means that a library has the maximum number of scripts.
var ErrFull = errors.New("too many scripts: remove some with DELETE, or POST /simulator/reset")

// Put parses source and stores it as the script called name. Active answers continue with the
// script that it replaces.
func (l *Library) Put(name string, source []byte) (*Script, error) {
	if !ValidName(name) || name == BuiltinName {
		return nil, fmt.Errorf("%q is not a script name that can be set: use up to 64 lower case letters, digits, '.', '-' and '_'", name)
	}
	s, err := Parse(name+".yaml", source)
	if err != nil {
		return nil, err
	}
	s.Name = name
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, ok := l.scripts[name]; !ok && len(l.scripts) >= maxScripts {
		return nil, ErrFull
	}
	l.scripts[name] = s
	return s, nil
}

// Remove removes the script called name, or restores the one that Open loaded under it. It
// reports whether there was one.
func (l *Library) Remove(name string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, ok := l.scripts[name]
	delete(l.scripts, name)
	if s, loaded := l.first[name]; loaded {
		l.scripts[name] = s
	}
	return ok
}

// Reset removes every script that was put.
func (l *Library) Reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.scripts = maps.Clone(l.first)
}

// Find returns the script for a model id. It returns nil if the id names an unknown script, or
// a model that its script does not list.
func (l *Library) Find(model string) *Script {
	name := DefaultName
	if rest, ok := strings.CutPrefix(model, ModelPrefix); ok {
		name, _, _ = strings.Cut(rest, "/")
	}
	l.mu.RLock()
	defer l.mu.RUnlock()
	s := l.scripts[name]
	if s == nil || !s.Knows(model) {
		return nil
	}
	return s
}

// List returns the scripts, sorted by name. It also lists the default script as "default".
func (l *Library) List() []Listed {
	l.mu.RLock()
	defer l.mu.RUnlock()
	out := make([]Listed, 0, len(l.scripts))
	for name, s := range l.scripts {
		out = append(out, Listed{Name: name, Description: s.Description, Models: s.Models, Rules: len(s.Rules)})
	}
	slices.SortFunc(out, func(a, b Listed) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// Listed is an entry of List.
type Listed struct {
	Name        string   `json:"name"`
	Description string   `json:"description,omitempty"`
	Models      []string `json:"models,omitempty"`
	Rules       int      `json:"rules"`
}
