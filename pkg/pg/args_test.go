package pg_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/pg"
	"signalbox.dev/pkg/pgtest"
)

func TestArgs(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, notes()).Open(t, notes())
	ws := id.New[id.Workspace]()
	read := func(sql string, args pg.Args) (got []string, err error) {
		b := &pgx.Batch{}
		b.Queue(sql, args).Query(collect(&got))
		return got, db.ReadInWorkspace(t.Context(), ws, b)
	}
	const sql = `select @b || @a || @b || '@c' || coalesce(@none::text, '-') -- @d`
	for range 3 { // as it is read, and as it is remembered
		got, err := read(sql, pg.Args{"a": "1", "b": "2", "none": nil, "unused": 3})
		if diff := cmp.Diff([]string{"212@c-"}, got); err != nil || diff != "" {
			t.Errorf("%s = %v (-want +got):\n%s", sql, err, diff)
		}
		if got, err := read(sql, pg.Args{"a": "1", "b": "2"}); err == nil {
			t.Errorf("%s without an argument = %v, want an error", sql, got)
		}
	}
}
