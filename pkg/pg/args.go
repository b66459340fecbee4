package pg

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/jackc/pgx/v5"
)

// Args are the arguments of a statement by name: @name in its text stands for
// Args["name"], which must be there. They are pgx.NamedArgs, but that a connection reads
// the text of a statement only once: each time would cost as much as sending it.
//
// Texts should be constants or few: a connection forgets them all when it has seen
// many.
type Args map[string]any

// maxTexts is how many statements' texts a connection remembers.
const maxTexts = 512

// textsKey is where a connection keeps them.
const textsKey = "signalbox.dev/pkg/pg texts"

// text is a statement with numbered placeholders, and what they stand for.
type text struct {
	sql   string
	names []string
}

// RewriteQuery implements pgx.QueryRewriter.
func (a Args) RewriteQuery(ctx context.Context, conn *pgx.Conn, sql string, _ []any) (string, []any, error) {
	// A connection has one user at a time.
	data := conn.PgConn().CustomData()
	texts, _ := data[textsKey].(map[string]text)
	t, known := texts[sql]
	if !known {
		var err error
		if t, err = read(ctx, conn, sql, maps.Clone(a)); err != nil {
			return "", nil, err
		}
		if texts == nil || len(texts) >= maxTexts {
			texts = map[string]text{}
			data[textsKey] = texts
		}
		texts[sql] = t
	}
	args := make([]any, len(t.names))
	for i, name := range t.names {
		arg, given := a[name]
		if !given {
			return "", nil, fmt.Errorf("the statement needs an argument @%s: %s", name, sql)
		}
		args[i] = arg
	}
	return t.sql, args, nil
}

// read lets pgx read a text with each argument standing for itself.
func read(ctx context.Context, conn *pgx.Conn, sql string, names Args) (text, error) {
	for name := range names {
		names[name] = name
	}
	numbered, args, err := pgx.NamedArgs(names).RewriteQuery(ctx, conn, sql, nil)
	if err != nil {
		return text{}, err
	}
	t := text{sql: numbered, names: make([]string, len(args))}
	for i, arg := range args {
		name, given := arg.(string)
		if !given {
			return text{}, fmt.Errorf("the statement needs another argument than %v: %s", slices.Sorted(maps.Keys(names)), sql)
		}
		t.names[i] = name
	}
	return t, nil
}
