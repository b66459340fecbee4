// Package datafile reads the YAML files of request profiles and OAuth providers strictly: an
// unknown field or a wrong value is an error that names file, line and field.
package datafile

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"reflect"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
)

const (
	maxFile  = 64 << 10
	maxFiles = 200
)

// LoadAll loads every *.yaml file at the root of each of dirs, and returns the results by name. A
// later directory replaces what an earlier one has under the same name; within a directory names
// are unique. what says in errors what the files describe. Problems are those of single files; an
// error ends the loading.
func LoadAll[T any](what string, name func(*T) string, load func(file string, text []byte) (*T, error), dirs ...fs.FS) (all map[string]*T, problems []error, err error) {
	all = map[string]*T{}
	for _, dir := range dirs {
		files, err := fs.Glob(dir, "*.yaml")
		if err != nil {
			return nil, nil, fmt.Errorf("list %ss: %w", what, err)
		}
		if len(files) > maxFiles {
			return nil, nil, fmt.Errorf("list %ss: %d files are over the limit of %d", what, len(files), maxFiles)
		}
		from := map[string]string{}
		for _, file := range files {
			text, err := read(dir, file, what)
			if err != nil {
				problems = append(problems, err)
				continue
			}
			v, err := load(file, text)
			if err != nil {
				problems = append(problems, err)
				continue
			}
			n := name(v)
			if other, taken := from[n]; taken {
				problems = append(problems, fmt.Errorf("%s: name: %q is taken by %s", place(file, text, "name"), n, other))
				continue
			}
			from[n], all[n] = file, v
		}
		misnamed, err := fs.Glob(dir, "*.yml")
		if err != nil {
			return nil, nil, fmt.Errorf("list %ss: %w", what, err)
		}
		for _, file := range misnamed {
			problems = append(problems, fmt.Errorf("%s: its name must end with .yaml: rename it", file))
		}
	}
	return all, problems, nil
}

// place is Checker.At for a file that was loaded.
func place(file string, text []byte, path string) string {
	tree, err := parser.ParseBytes(text, 0)
	if err != nil {
		return file
	}
	return (&Checker{file: file, tree: tree}).At(path)
}

func read(dir fs.FS, file, what string) ([]byte, error) {
	info, err := fs.Stat(dir, file)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", what, err)
	}
	if info.Size() > maxFile {
		return nil, fmt.Errorf("%s: %d bytes are over the limit of %d", file, info.Size(), maxFile)
	}
	text, err := fs.ReadFile(dir, file)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", what, err)
	}
	return text, nil
}

// Checker collects what is wrong with a file's fields.
type Checker struct {
	file     string
	tree     *ast.File
	problems []problem
}

// Decode decodes a file's one document into src.
func Decode(file string, text []byte, src any) (*Checker, error) {
	tree, err := parser.ParseBytes(text, 0)
	if err != nil {
		return nil, positioned(file, err)
	}
	c := &Checker{file: file, tree: tree}
	if len(tree.Docs) != 1 || !holds(tree.Docs[0]) {
		line := 1
		if len(tree.Docs) > 1 && tree.Docs[1].Start != nil {
			line = tree.Docs[1].Start.Position.Line
		}
		return nil, fmt.Errorf("%s:%d: want exactly one YAML document", file, line)
	}
	if err := yaml.NodeToValue(tree.Docs[0].Body, src, yaml.Strict()); err != nil {
		return nil, c.misfit(err)
	}
	c.wantValues()
	if err := c.Err(); err != nil {
		return nil, err
	}
	return c, nil
}

// holds reports whether a document has more than comments.
func holds(d *ast.DocumentNode) bool { return d.Body != nil && d.Body.Type() != ast.CommentType }

// wantValues reports the fields without a value, which would be taken for missing.
func (c *Checker) wantValues() {
	c.walk(func(n ast.Node) {
		if n.Type() == ast.NullType {
			c.Wrong(path(n), "it has no value: give it one, or leave it out")
		}
	})
}

// misfit says which field has a value that the YAML library did not accept, and what would be
// right.
func (c *Checker) misfit(err error) error {
	var want string
	if e, ok := errors.AsType[*yaml.UnexpectedNodeTypeError](err); ok {
		want = map[ast.NodeType]string{ast.SequenceType: "a list", ast.MappingType: "fields with values"}[e.Expected]
	}
	if e, ok := errors.AsType[*yaml.TypeError](err); ok {
		want = kinds[e.DstType.Kind()]
	}
	if want == "" {
		return positioned(c.file, err)
	}
	e, _ := errors.AsType[yaml.Error](err)
	field := ""
	c.walk(func(n ast.Node) {
		if n.GetToken() == e.GetToken() && n.Type() != ast.MappingValueType && field == "" {
			field = path(n)
		}
	})
	if field == "" {
		return fmt.Errorf("%s:%d: want %s", c.file, e.GetToken().Position.Line, want)
	}
	return fmt.Errorf("%s:%d: %s: want %s", c.file, e.GetToken().Position.Line, field, want)
}

// kinds are the values that fields take.
var kinds = map[reflect.Kind]string{
	reflect.String: "a text", reflect.Slice: "a list", reflect.Map: "fields with values", reflect.Struct: "fields with values",
	reflect.Bool: "true or false", reflect.Int: "a number", reflect.Int64: "a number", reflect.Float64: "a number",
}

// path returns the path of a node, as for Wrong.
func path(n ast.Node) string { return strings.TrimPrefix(strings.TrimPrefix(n.GetPath(), "$"), ".") }

// walk calls f with every node.
func (c *Checker) walk(f func(ast.Node)) { ast.Walk(visitor(f), c.tree.Docs[0].Body) }

type visitor func(ast.Node)

// Visit implements ast.Visitor.
func (v visitor) Visit(n ast.Node) ast.Visitor {
	v(n)
	return v
}

// positioned returns an error of the YAML library in one line, after file and line.
func positioned(file string, err error) error {
	if e, ok := errors.AsType[yaml.Error](err); ok && e.GetToken() != nil {
		return fmt.Errorf("%s:%d: %s", file, e.GetToken().Position.Line, e.GetMessage())
	}
	first, _, _ := strings.Cut(err.Error(), "\n")
	return fmt.Errorf("%s: %s", file, first)
}

// problem is one that Wrong reported.
type problem struct {
	line int
	text string
}

// Wrong reports a problem with a field, whose path is such as routes[0].path.
func (c *Checker) Wrong(path, format string, args ...any) {
	line := c.line(path)
	c.problems = append(c.problems, problem{line, fmt.Sprintf("%s:%d: %s: %s", c.file, line, path, fmt.Sprintf(format, args...))})
}

// At returns the file and line of a field.
func (c *Checker) At(path string) string { return fmt.Sprintf("%s:%d", c.file, c.line(path)) }

// Err returns the problems in the order of the file, one line each; nil if there are none.
func (c *Checker) Err() error {
	slices.SortFunc(c.problems, func(a, b problem) int {
		return cmp.Or(cmp.Compare(a.line, b.line), cmp.Compare(a.text, b.text))
	})
	var all []error
	for _, p := range c.problems {
		all = append(all, errors.New(p.text))
	}
	return errors.Join(all...)
}

// line returns the line of a field, or of the nearest field around it that exists.
func (c *Checker) line(path string) int {
	for path != "" {
		if p, err := yaml.PathString("$." + path); err == nil {
			if node, err := p.FilterFile(c.tree); err == nil && node != nil && node.GetToken() != nil {
				return node.GetToken().Position.Line
			}
		}
		cut := strings.LastIndexAny(path, ".[")
		if cut < 0 {
			break
		}
		path = path[:cut]
	}
	return 1
}
