package owner_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"signalbox.dev/services/credential-broker/internal/owner"
)

// TestLike: root gives a file away, and others are told as whom to try again.
func TestLike(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	made, err := os.Create(filepath.Join(dir, "made"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = made.Close() })
	if err := owner.Copy(made, dir); err != nil {
		t.Errorf("Like = %v for one's own", err)
	}
	if err := owner.Copy(made, filepath.Join(dir, "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Like = %v, want %v", err, fs.ErrNotExist)
	}
	root := os.Geteuid() == 0
	theirs := "/" // root's
	if root {
		theirs = filepath.Join(dir, "theirs")
		if err := os.Mkdir(theirs, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(theirs, 65534, 65534); err != nil {
			t.Fatal(err)
		}
	}
	err = owner.Copy(made, theirs)
	if !root {
		if err == nil || !strings.Contains(err.Error(), "belongs to the user 0: run this as that user") {
			t.Errorf("Like = %v, want to be told whose it is", err)
		}
		owner.CopyFolder(made, theirs)
	}
	info, statErr := made.Stat()
	if statErr != nil {
		t.Fatal(statErr)
	}
	if s := info.Sys().(*syscall.Stat_t); root && (err != nil || s.Uid != 65534 || s.Gid != 65534) || !root && int(s.Uid) != os.Geteuid() {
		t.Errorf("Like = %v, and it is of %d, %d", err, s.Uid, s.Gid)
	}
}
