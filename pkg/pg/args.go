package pg

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
)

// Args are the arguments of a statement by name: @name stands for Args["name"], which must
// be given. Unlike pgx.NamedArgs, which costs as much as sending a statement, Args are parsed
// once per connection and statement.
//
// Statements should be constants, or few: a connection that has parsed many forgets them all.
type Args map[string]any

// maxParsed is how many parsed statements a connection remembers.
const maxParsed = 512

// parsedKey is where a connection keeps its parsed statements.
const parsedKey = "signalbox.dev/pkg/pg statements"

// statement has numbered placeholders, and the names of their arguments.
type statement struct {
	sql   string
	names []string
}

// RewriteQuery implements pgx.QueryRewriter.
func (a Args) RewriteQuery(ctx context.Context, conn *pgx.Conn, sql string, _ []any) (string, []any, error) {
	// Without a lock: a connection has one user at a time.
	data := conn.PgConn().CustomData()
	parsed, _ := data[parsedKey].(map[string]statement)
	s, known := parsed[sql]
	if !known {
		var err error
		if s, err = parse(ctx, conn, sql, maps.Clone(a)); err != nil {
			return "", nil, err
		}
		if parsed == nil || len(parsed) >= maxParsed {
			parsed = map[string]statement{}
			data[parsedKey] = parsed
		}
		parsed[sql] = s
	}
	args := make([]any, len(s.names))
	for i, name := range s.names {
		arg, given := a[name]
		if !given {
			return "", nil, fmt.Errorf("the statement needs an argument @%s: %s", name, sql)
		}
		args[i] = arg
	}
	return s.sql, args, nil
}

// parse lets pgx number the placeholders, with the name of each argument as its value.
func parse(ctx context.Context, conn *pgx.Conn, sql string, names Args) (statement, error) {
	for name := range names {
		names[name] = name
	}
	numbered, args, err := pgx.NamedArgs(names).RewriteQuery(ctx, conn, sql, nil)
	if err != nil {
		return statement{}, err
	}
	s := statement{sql: numbered, names: make([]string, len(args))}
	for i, arg := range args {
		name, given := arg.(string)
		if !given {
			return statement{}, fmt.Errorf("the statement needs another argument than %v: %s", slices.Sorted(maps.Keys(names)), sql)
		}
		s.names[i] = name
	}
	return s, nil
}

var escapeLike = strings.NewReplacer(`\`, `\\`, `%`, `\%`, `_`, `\_`)

// Containing returns the pattern of LIKE and ILIKE for texts that contain a text.
func Containing(text string) string { return "%" + escapeLike.Replace(text) + "%" }
