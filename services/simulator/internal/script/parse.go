package script

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

var nameForm = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,63}$`)

// ValidName reports whether a script may be called name: lower case letters,
// digits, dot, dash and underscore, 64 characters at most.
func ValidName(name string) bool { return nameForm.MatchString(name) }

// Parse reads a script. An error names file, line, column and the path of the
// field: "demo.yaml:7:9: rules[0].then[1]: unknown action "sya"".
func Parse(file string, source []byte) (*Script, error) {
	if len(source) > MaxBytes {
		return nil, fmt.Errorf("%s: a script may be %d bytes long, this one has %d", file, MaxBytes, len(source))
	}
	if line := tooDeep(source); line > 0 {
		return nil, fmt.Errorf("%s:%d: nested too deeply for a script", file, line)
	}
	doc, err := parser.ParseBytes(source, 0)
	if err != nil {
		return nil, located(file, nil, err)
	}
	if len(doc.Docs) != 1 || doc.Docs[0].Body == nil {
		return nil, fmt.Errorf("%s:1: a script is one YAML document with a list of rules", file)
	}
	body := doc.Docs[0].Body
	if alias := firstAlias(body); alias != nil {
		return nil, located(file, body, bad(alias, "aliases are not supported in scripts"))
	}
	s := &Script{version: sha256.Sum256(source)}
	if err := yaml.NodeToValue(body, s, yaml.Strict()); err != nil {
		return nil, located(file, body, err)
	}
	if err := s.check(); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return s, nil
}

// check checks rules that concern more than one field.
func (s *Script) check() error {
	if s.Name != "" && !ValidName(s.Name) {
		return fmt.Errorf("name: %q is not a script name: use up to 64 lower case letters, digits, '.', '-' and '_'", s.Name)
	}
	switch s.Reasoning {
	case "", "none", "reasoning", "reasoning_content":
	default:
		return fmt.Errorf("reasoning: %q is not known: use reasoning_content, reasoning or none", s.Reasoning)
	}
	if len(s.Rules) == 0 {
		return errors.New("rules: a script needs at least one rule")
	}
	if len(s.Rules) > maxRules {
		return fmt.Errorf("rules: %d rules are more than the %d allowed", len(s.Rules), maxRules)
	}
	for i, r := range s.Rules {
		if len(r.Then) == 0 {
			return fmt.Errorf("rules[%d].then: rule %q does nothing: give it at least one action", i, r.Name)
		}
		if len(r.Then) > maxActions || len(r.Otherwise) > maxActions {
			return fmt.Errorf("rules[%d].then: more than %d actions", i, maxActions)
		}
		if len(r.Otherwise) > 0 && len(r.Needs) == 0 {
			return fmt.Errorf("rules[%d].otherwise: never done, because the rule has no needs", i)
		}
	}
	return nil
}

// tooDeep returns the line where the nesting is too deep, or 0. It runs before the parser,
// whose time grows with the square of the depth.
func tooDeep(source []byte) int {
	const indent, flow, inline = 200, 100, 20
	open, n := 0, 0
	for line := range bytes.Lines(source) {
		n++
		rest := bytes.TrimLeft(line, " ")
		if len(line)-len(rest) > indent {
			return n
		}
		dashes := 0
		for len(rest) > 1 && (rest[0] == '-' || rest[0] == '?' || rest[0] == ':') && rest[1] == ' ' {
			rest = bytes.TrimLeft(rest[1:], " ")
			dashes++
		}
		if dashes > inline {
			return n
		}
		for _, c := range line {
			switch c {
			case '[', '{':
				open++
			case ']', '}':
				open = max(0, open-1)
			}
			if open > flow {
				return n
			}
		}
	}
	return 0
}

// bad returns an error at a node of the file.
func bad(n ast.Node, format string, args ...any) error {
	return &yaml.SyntaxError{Message: fmt.Sprintf(format, args...), Token: n.GetToken()}
}

// located formats an error of the YAML library as one line with file, line and field.
func located(file string, body ast.Node, err error) error {
	at, ok := errors.AsType[yaml.Error](err)
	if !ok || at.GetToken() == nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	tok := at.GetToken()
	msg := at.GetMessage()
	if te, ok := errors.AsType[*yaml.TypeError](err); ok {
		msg = fmt.Sprintf("%q does not fit: a value of type %s is wanted", tok.Value, te.DstType)
	}
	if path := pathOf(body, tok); path != "" {
		msg = path + ": " + msg
	}
	return fmt.Errorf("%s:%d:%d: %s", file, tok.Position.Line, tok.Position.Column, msg)
}

// pathOf returns the path of a token in the document, such as rules[0].then[1].say.
func pathOf(body ast.Node, tok *token.Token) string {
	if body == nil {
		return ""
	}
	v := &finder{found: func(n ast.Node) bool { return n.GetToken() == tok }}
	ast.Walk(v, body)
	if v.node == nil {
		return ""
	}
	return strings.TrimPrefix(strings.TrimPrefix(v.node.GetPath(), "$"), ".")
}

func firstAlias(body ast.Node) ast.Node {
	v := &finder{found: func(n ast.Node) bool { return n.Type() == ast.AliasType }}
	ast.Walk(v, body)
	return v.node
}

type finder struct {
	found func(ast.Node) bool
	node  ast.Node
}

// Visit implements ast.Visitor.
func (f *finder) Visit(n ast.Node) ast.Visitor {
	if f.node == nil && n != nil && f.found(n) {
		f.node = n
	}
	if f.node != nil {
		return nil
	}
	return f
}
