package mcp

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"signalbox.dev/pkg/visible"
)

const (
	maxSchema      = 64 << 10
	maxSchemaDepth = 32
	maxDescription = 4096   // runes that the model sees
	maxSaid        = 500    // runes of a server's error
	maxExpanded    = 20_000 // parts of a schema with its references expanded
	maxReferences  = 16     // that are followed one after the other
)

// Definition is a tool as its server defines it, as far as the model or we act on it.
type Definition struct {
	Name        string          `json:"name"`
	Description string          `json:"description,omitempty"`
	InputSchema json.RawMessage `json:"input_schema,omitempty"`
	ReadOnly    bool            `json:"read_only,omitempty"`
	Idempotent  bool            `json:"idempotent,omitempty"`
	// Kind is set for a tool that is not the server's own.
	Kind string `json:"kind,omitempty"`
	// Problem says why the tool cannot be used; empty if it can.
	Problem string `json:"problem,omitempty"`
}

// define reads a tool. What is too large is left out, and Problem says so.
func define(t *mcp.Tool) Definition {
	d := Definition{Name: t.Name, Description: t.Description}
	if d.Description == "" {
		d.Description = t.Title
	}
	if a := t.Annotations; a != nil {
		d.ReadOnly, d.Idempotent = a.ReadOnlyHint, a.IdempotentHint
		if d.Description == "" {
			d.Description = a.Title
		}
	}
	if len(d.Name) > maxDescription {
		d.Name, d.Problem = clip(d.Name, 100), "its name is too long"
	}
	if len(d.Description) > maxSchema {
		d.Description, d.Problem = clip(d.Description, maxDescription), "its description is too long"
	}
	schema, err := json.Marshal(t.InputSchema)    // sorts the keys
	schema = []byte(visible.Text(string(schema))) // the model sees its descriptions
	switch {
	case err != nil:
		d.Problem = "its input schema cannot be read"
	case len(schema) > maxSchema:
		d.Problem = fmt.Sprintf("its input schema is larger than %d bytes", maxSchema)
	case depth(schema) > maxSchemaDepth:
		d.Problem = fmt.Sprintf("its input schema is deeper than %d levels", maxSchemaDepth)
	default:
		d.InputSchema = schema
	}
	return d
}

// Hash returns a digest of everything that a member approves.
func (d Definition) Hash() string {
	b, err := json.Marshal(d)
	if err != nil { // strings, booleans and valid JSON
		return ""
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:16])
}

var outsideName = regexp.MustCompile(`[^a-zA-Z0-9_-]`)

// toolName returns the name of a server's tool in the catalogue: mcp__<server>__<tool>. A name
// that is too long or has other characters is adapted, and ends with a digest of the original.
func toolName(server, original string) string {
	const most, digest = 64, 8
	name := "mcp__" + server + "__" + outsideName.ReplaceAllString(original, "_")
	if name == "mcp__"+server+"__"+original && len(name) <= most && original != "" {
		return name
	}
	sum := sha256.Sum256([]byte(original))
	return name[:min(len(name), most-digest-1)] + "_" + hex.EncodeToString(sum[:digest/2])
}

// depth returns the nesting of valid JSON.
func depth(text []byte) (deepest int) {
	d := json.NewDecoder(bytes.NewReader(text))
	level := 0
	for {
		t, err := d.Token()
		if err != nil {
			return deepest
		}
		switch t {
		case json.Delim('{'), json.Delim('['):
			level++
			deepest = max(deepest, level)
		case json.Delim('}'), json.Delim(']'):
			level--
		}
	}
}

// isComplex reports whether validation against a schema could take very long: if it is large
// with all its references expanded, or has references that this function does not follow.
func isComplex(schema []byte) bool {
	var root any
	if json.Unmarshal(schema, &root) != nil {
		return true
	}
	left := maxExpanded
	var walk func(v any, references int) bool
	walk = func(v any, references int) bool {
		if left--; left < 0 {
			return true
		}
		switch v := v.(type) {
		case []any:
			for _, e := range v {
				if walk(e, references) {
					return true
				}
			}
		case map[string]any:
			for key, e := range v {
				target, isText := e.(string)
				switch {
				case (key == "$dynamicRef" || key == "$recursiveRef") && isText:
					return true
				case key == "$ref" && isText:
					if references == maxReferences {
						continue
					}
					next, ok := resolve(root, target)
					if !ok || walk(next, references+1) {
						return true
					}
				case walk(e, references):
					return true
				}
			}
		}
		return false
	}
	return walk(root, 0)
}

// resolve returns what a JSON pointer in a reference (#/$defs/x) points at.
func resolve(root any, reference string) (any, bool) {
	pointer, ok := strings.CutPrefix(reference, "#")
	if !ok || pointer != "" && pointer[0] != '/' {
		return nil, false
	}
	at := root
	for _, step := range strings.Split(pointer, "/")[1:] {
		object, ok := at.(map[string]any)
		if !ok {
			return nil, false
		}
		if at, ok = object[strings.NewReplacer("~1", "/", "~0", "~").Replace(step)]; !ok {
			return nil, false
		}
	}
	return at, true
}

// clip shortens text to a number of runes.
func clip(s string, most int) string {
	if len(s) <= most {
		return s
	}
	if r := []rune(s); len(r) > most {
		return string(r[:most]) + "…"
	}
	return s
}
