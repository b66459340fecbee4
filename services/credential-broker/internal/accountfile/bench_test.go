package accountfile_test

import (
	"fmt"
	"log/slog"
	"path/filepath"
	"testing"

	"signalbox.dev/services/credential-broker/internal/accountfile"
)

// BenchmarkFile looks at a file, and changes it, which includes two syncs to the disk.
func BenchmarkFile(b *testing.B) {
	for _, n := range []int{10, 100} {
		f, err := accountfile.Open(b.Context(), filepath.Join(b.TempDir(), "accounts.json"), slog.New(slog.DiscardHandler))
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(f.Close)
		for i := range n {
			if err := add(b.Context(), f, account(fmt.Sprint(i))); err != nil {
				b.Fatal(err)
			}
		}
		b.Run(fmt.Sprintf("View/%d accounts", n), func(b *testing.B) {
			for b.Loop() {
				if _, err := f.View(b.Context()); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(fmt.Sprintf("Update/%d accounts", n), func(b *testing.B) {
			for b.Loop() {
				err := f.Update(b.Context(), func(s *accountfile.State) error { s.Accounts[0].Enabled = !s.Accounts[0].Enabled; return nil })
				if err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
