package pgd_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"signalbox.dev/pkg/pgd"
)

// A killed server is restarted at the same address and with its data, but not in place of a
// folder that is gone.
func TestSupervise(t *testing.T) {
	t.Parallel()
	for name, deep := range map[string]string{"socket in the folder": "", "socket elsewhere": strings.Repeat("long-", 20)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join(open(t), deep, "data")
			k, err := pgd.Supervise(t.Context(), pgd.Config{Dir: dir, Password: "secret1"})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = k.Stop(context.WithoutCancel(t.Context())) })
			address := k.URL("postgres")
			query(t, address, "create table kept as select 1")
			for range 2 {
				kill(t, postmaster(t, dir))
				await(t, "the server is missed", func() bool { return k.Err() != nil })
				await(t, "the server is back", func() bool { return k.Err() == nil })
				if got := query(t, address, "select count(*)::text from kept"); got != "1" {
					t.Errorf("after a kill: %q rows, want 1", got)
				}
			}

			if err := os.Rename(dir, dir+".away"); err != nil {
				t.Fatal(err)
			}
			kill(t, postmaster(t, dir+".away"))
			await(t, "the folder is missed", func() bool {
				err := k.Err()
				return err != nil && strings.Contains(err.Error(), "is gone: restore it")
			})
			if err := os.Rename(dir+".away", dir); err != nil {
				t.Fatal(err)
			}
			await(t, "the server is back in its folder", func() bool { return k.Err() == nil })
			query(t, address, "select count(*)::text from kept")

			if err := k.Stop(t.Context()); err != nil {
				t.Error(err)
			}
			if c, err := pgx.Connect(t.Context(), address); err == nil {
				_ = c.Close(t.Context())
				t.Error("a server runs after Stop")
			}
		})
	}
}
