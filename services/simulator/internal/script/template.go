package script

import (
	"errors"
	"fmt"
	"strings"
	"text/template"
	"text/template/parse"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
)

// maxText bounds the output of one template.
const maxText = 256 << 10

// Template is a text with {{ }} actions of text/template. To guarantee that it ends soon, it may
// not contain other templates, loops over numbers, or functions other than those of functions
// and the comparisons.
type Template struct {
	static string
	t      *template.Template
}

// UnmarshalYAML reads a scalar.
func (t *Template) UnmarshalYAML(n ast.Node) error {
	var s string
	if err := yaml.NodeToValue(n, &s); err != nil {
		return err
	}
	c, err := newTemplate(s)
	if err != nil {
		return bad(n, "%v", err)
	}
	*t = *c
	return nil
}

func newTemplate(text string) (*Template, error) {
	if !strings.Contains(text, "{{") {
		return &Template{static: text}, nil
	}
	t, err := template.New("text").Option("missingkey=error").Funcs(functions()).Parse(text)
	if err != nil {
		return nil, errors.New(strings.TrimPrefix(err.Error(), "template: "))
	}
	if len(t.Templates()) > 1 {
		return nil, errors.New("define and block are not supported in scripts")
	}
	if t.Tree == nil || t.Root == nil {
		return &Template{}, nil
	}
	if err := allowed(t.Root, 0); err != nil {
		return nil, err
	}
	return &Template{t: t}, nil
}

// render returns the text. It calls data only if the template has actions.
func (t *Template) render(data func() map[string]any) (string, error) {
	if t == nil {
		return "", nil
	}
	if t.t == nil {
		return t.static, nil
	}
	var w limited
	if err := t.t.Execute(&w, data()); err != nil {
		return "", errors.New(strings.TrimPrefix(err.Error(), "template: "))
	}
	return w.String(), nil
}

// limited is a writer that fails after maxText bytes.
type limited struct{ strings.Builder }

func (w *limited) Write(p []byte) (int, error) {
	if w.Len()+len(p) > maxText {
		return 0, fmt.Errorf("more than %d bytes of text", maxText)
	}
	return w.Builder.Write(p)
}

// allowed returns an error if a template contains something that could run for long.
func allowed(n parse.Node, loops int) error {
	switch n := n.(type) {
	case *parse.ListNode:
		if n == nil {
			return nil
		}
		for _, c := range n.Nodes {
			if err := allowed(c, loops); err != nil {
				return err
			}
		}
	case *parse.TextNode, *parse.CommentNode, *parse.BreakNode, *parse.ContinueNode:
	case *parse.ActionNode:
		return allowedPipe(n.Pipe)
	case *parse.IfNode:
		return allowedBranch(&n.BranchNode, loops)
	case *parse.WithNode:
		return allowedBranch(&n.BranchNode, loops)
	case *parse.RangeNode:
		if loops == 2 {
			return errors.New("range goes at most two deep in scripts")
		}
		if !finite(n.Pipe) {
			return errors.New("range goes over lists of the data only, such as .results")
		}
		return allowedBranch(&n.BranchNode, loops+1)
	default:
		return fmt.Errorf("%s is not supported in scripts", n)
	}
	return nil
}

func allowedBranch(n *parse.BranchNode, loops int) error {
	if err := allowedPipe(n.Pipe); err != nil {
		return err
	}
	if err := allowed(n.List, loops); err != nil {
		return err
	}
	return allowed(n.ElseList, loops)
}

func allowedPipe(p *parse.PipeNode) error {
	for _, c := range p.Cmds {
		for _, a := range c.Args {
			switch a := a.(type) {
			case *parse.IdentifierNode:
				if !known(a.Ident) {
					return fmt.Errorf("function %q is not supported in scripts", a.Ident)
				}
			case *parse.PipeNode:
				if err := allowedPipe(a); err != nil {
					return err
				}
			case *parse.ChainNode:
				inner, ok := a.Node.(*parse.PipeNode)
				if !ok {
					continue
				}
				if err := allowedPipe(inner); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// finite reports whether a pipe can only give a list, a map or a single value of
// the data, never a large number.
func finite(p *parse.PipeNode) bool {
	if len(p.Cmds) != 1 {
		return false
	}
	args := p.Cmds[0].Args
	switch first := args[0].(type) {
	case *parse.FieldNode:
		return len(args) == 1
	case *parse.VariableNode:
		return len(args) == 1 && len(first.Ident) > 1
	case *parse.IdentifierNode:
		return first.Ident == "first" || first.Ident == "index" || first.Ident == "get"
	default:
		return false
	}
}
