// Package layout checks the structure of this repository: the imports of every Go file in the
// modules proto, pkg and services (imports.go), their package comments, their go.mod files
// (modules.go), and the case of SQL (sql.go). It parses files without compiling them, so it
// also sees files with build constraints, and works on a tree that does not build.
package layout

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
)

// module is the prefix of our import paths.
const module = "signalbox.dev/"

// Check returns the violations in the repository at root, a sentence each, sorted. The error
// means that the tree cannot be read.
func Check(root fs.FS) ([]string, error) {
	packages, err := load(root)
	if err != nil {
		return nil, err
	}
	var wrong []string
	for _, p := range packages {
		wrong = append(wrong, p.checkImports()...)
		wrong = append(wrong, p.checkComment()...)
		wrong = append(wrong, p.checkSQL()...)
	}
	modules, err := checkModules(root)
	if err != nil {
		return nil, err
	}
	wrong = append(wrong, modules...)
	slices.Sort(wrong)
	return wrong, nil
}

// dir is a folder with Go files.
type dir struct {
	// path is relative to the repository, such as services/gateway/internal/api.
	path  string
	files []file
}

type file struct {
	name      string
	pkg       string // the package clause
	imports   []string
	doc       string
	lowerSQL  []int // lines
	test      bool  // _test.go
	generated bool
}

// load parses the Go files of the three modules.
func load(root fs.FS) ([]dir, error) {
	found := map[string]*dir{}
	for _, top := range members {
		err := fs.WalkDir(root, top, func(name string, e fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return err
			case e.IsDir() && skipped(e.Name()):
				return fs.SkipDir
			case e.IsDir() || path.Ext(name) != ".go":
				return nil
			}
			f, err := read(root, name)
			if err != nil {
				return err
			}
			d := found[path.Dir(name)]
			if d == nil {
				d = &dir{path: path.Dir(name)}
				found[d.path] = d
			}
			d.files = append(d.files, f)
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("read the packages of %s: %w", top, err)
		}
	}
	all := make([]dir, 0, len(found))
	for _, d := range found {
		all = append(all, *d)
	}
	return all, nil
}

// skipped reports whether a folder is one that the go command skips, too.
func skipped(name string) bool {
	return name == "testdata" || name == "node_modules" || name == "vendor" || strings.HasPrefix(name, ".") || strings.HasPrefix(name, "_")
}

func read(root fs.FS, name string) (file, error) {
	text, err := fs.ReadFile(root, name)
	if err != nil {
		return file{}, err
	}
	files := token.NewFileSet()
	tree, err := parser.ParseFile(files, name, text, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return file{}, err
	}
	f := file{
		name: path.Base(name), pkg: tree.Name.Name, doc: tree.Doc.Text(),
		test: strings.HasSuffix(name, "_test.go"), generated: ast.IsGenerated(tree),
	}
	if !f.test && !f.generated {
		f.lowerSQL = lowerSQL(files, tree)
	}
	for _, spec := range tree.Imports {
		imported, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			return file{}, fmt.Errorf("%s: import %s: %w", name, spec.Path.Value, err)
		}
		f.imports = append(f.imports, imported)
	}
	return f, nil
}

// checkComment requires one package comment of the form that go doc expects. Generated packages
// are documented in their .proto files.
func (d dir) checkComment() []string {
	var with, without []string
	var wrong []string
	for _, f := range d.files {
		switch {
		case f.test || f.generated:
		case f.doc == "":
			without = append(without, f.name)
		default:
			with = append(with, f.name)
			if f.pkg != "main" && !strings.HasPrefix(f.doc, "Package "+f.pkg+" ") {
				wrong = append(wrong, fmt.Sprintf("%s/%s: the package comment does not begin with %q", d.path, f.name, "Package "+f.pkg))
			}
		}
	}
	switch {
	case len(with) == 0 && len(without) > 0:
		wrong = append(wrong, d.path+": no package comment: say what the package does and what its reader must know")
	case len(with) > 1:
		wrong = append(wrong, fmt.Sprintf("%s: %d package comments (%s): leave one", d.path, len(with), strings.Join(with, ", ")))
	}
	return wrong
}
