package layout

import (
	"fmt"
	"go/ast"
	"go/token"
	"regexp"
	"strconv"
)

var (
	// statement matches a literal that is an SQL statement.
	statement = regexp.MustCompile(`(?is)^\s*(select\b.+\bfrom\b|insert into \S+ ?\(|update \S+ set\b|delete from \S+ where\b)`)
	// lowerKeyword matches a line of a statement that begins with a keyword in lower case.
	lowerKeyword = regexp.MustCompile(`(?m)^\s*(select|insert|update|delete|from|where|and|or|join|left join|group by|order by|limit|returning|values|set|on conflict|union|for update)\b`)
)

// lowerSQL returns the lines of a file with SQL statements whose keywords are in lower case.
func lowerSQL(files *token.FileSet, tree *ast.File) (lines []int) {
	ast.Inspect(tree, func(n ast.Node) bool {
		literal, ok := n.(*ast.BasicLit)
		if !ok || literal.Kind != token.STRING {
			return true
		}
		if text, err := strconv.Unquote(literal.Value); err == nil && statement.MatchString(text) && lowerKeyword.MatchString(text) {
			lines = append(lines, files.Position(literal.Pos()).Line)
		}
		return true
	})
	return lines
}

// checkSQL requires upper-case keywords in SQL statements, except in tests.
func (d dir) checkSQL() []string {
	var wrong []string
	for _, f := range d.files {
		for _, line := range f.lowerSQL {
			wrong = append(wrong, fmt.Sprintf("%s/%s:%d: SQL keywords are upper case", d.path, f.name, line))
		}
	}
	return wrong
}
