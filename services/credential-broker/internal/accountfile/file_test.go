package accountfile_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/services/credential-broker/internal/accountfile"
	"signalbox.dev/services/credential-broker/internal/vault"
)

// lines is a log.
type lines struct {
	mu   sync.Mutex // guards text
	text bytes.Buffer
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func (l *lines) logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

// TestOwner: what root changes keeps its owner, and what root creates gets the folder's.
func TestOwner(t *testing.T) {
	t.Parallel()
	whose := os.Geteuid()
	path := place(t)
	folder := filepath.Dir(path)
	if err := os.Mkdir(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	check := func(want int, files ...string) {
		t.Helper()
		all, err := os.ReadDir(folder)
		if err != nil || len(all) != len(files) {
			t.Fatalf("ReadDir = %v, %v, want %q", all, err, files)
		}
		for i, entry := range all {
			info, err := entry.Info()
			if err != nil || entry.Name() != files[i] || int(info.Sys().(*syscall.Stat_t).Uid) != want {
				t.Errorf("%s, %v is of the user %d, want %s of %d", entry.Name(), err, info.Sys().(*syscall.Stat_t).Uid, files[i], want)
			}
		}
	}
	if whose == 0 {
		whose = 65534
	}
	if err := os.Chown(folder, whose, -1); err != nil {
		t.Fatal(err)
	}
	f, _ := open(t, path)
	mustRecord(t, f, "one")
	mustAdd(t, f, "one")
	all := []string{".gitignore", "accounts.json", "accounts.json.audit", "accounts.json.lock"}
	check(whose, all...)
	mustAdd(t, f, "two")
	check(whose, all...)
}

// place returns the path of a file that does not exist.
func place(t *testing.T) string {
	t.Helper()
	return filepath.Join(t.TempDir(), "folder", "accounts.json")
}

func open(t *testing.T, path string, mine ...string) (*accountfile.File, *lines) {
	t.Helper()
	log := &lines{}
	f, err := accountfile.Open(t.Context(), path, log.logger(), mine...)
	if err != nil {
		t.Fatalf("Open = %v", err)
	}
	t.Cleanup(f.Close)
	return f, log
}

func view(t *testing.T, f *accountfile.File) *accountfile.State {
	t.Helper()
	s, err := f.View(t.Context())
	if err != nil {
		t.Fatalf("View = %v", err)
	}
	return s
}

// account is one with all that an account can have.
func account(label string) accountfile.Account {
	at := time.Now().UTC()
	return accountfile.Account{
		ID: id.New[id.Account](), Provider: "openai", Profile: "openai", Label: label, Enabled: true, CreatedAt: at, LastUsedAt: &at,
		Sealed: vault.Sealed{KeyVersion: 1, Bytes: []byte("sealed")},
	}
}

// add puts an account into the file, and the data key that it needs.
func add(ctx context.Context, f *accountfile.File, a accountfile.Account) error {
	return f.Update(ctx, func(s *accountfile.State) error {
		if len(s.Keys) == 0 {
			s.Keys = append(s.Keys, accountfile.DataKey{WrappedKey: vault.WrappedKey{Version: 1, KEK: "k", Wrapped: []byte("wrapped")}})
		}
		s.Accounts = append(s.Accounts, a)
		return nil
	})
}

func mustAdd(t *testing.T, f *accountfile.File, label string) accountfile.Account {
	t.Helper()
	a := account(label)
	if err := add(t.Context(), f, a); err != nil {
		t.Fatalf("Update = %v", err)
	}
	return a
}

func text(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// beside returns the names in the file's folder.
func beside(t *testing.T, path string) []string {
	t.Helper()
	all, err := os.ReadDir(filepath.Dir(path))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range all {
		names = append(names, e.Name())
	}
	return names
}

func TestUpdateAndView(t *testing.T) {
	t.Parallel()
	path := place(t)
	f, _ := open(t, path)
	if s := view(t, f); len(s.Accounts) != 0 {
		t.Errorf("a file that is not there holds %+v", s)
	}
	want := mustAdd(t, f, "one")
	before := view(t, f)
	second := mustAdd(t, f, "two")
	if len(before.Accounts) != 1 {
		t.Errorf("a State that was viewed has changed: %+v", before.Accounts)
	}
	other, _ := open(t, path)
	for _, f := range []*accountfile.File{f, other} {
		if diff := cmp.Diff([]accountfile.Account{want, second}, view(t, f).Accounts); diff != "" {
			t.Errorf("accounts (-want +got):\n%s", diff)
		}
	}
	if diff := cmp.Diff([]string{".gitignore", "accounts.json", "accounts.json.lock"}, beside(t, path)); diff != "" {
		t.Errorf("the folder holds (-want +got):\n%s", diff)
	}
	for name, want := range map[string]os.FileMode{path: 0o600, path + ".lock": 0o600, filepath.Dir(path): 0o700 | os.ModeDir} {
		if info, err := os.Stat(name); err != nil || info.Mode() != want {
			t.Errorf("%s: %v, %v, want %v", name, info.Mode(), err, want)
		}
	}
}

func TestUpdateWithoutChange(t *testing.T) {
	t.Parallel()
	path := place(t)
	f, _ := open(t, path)
	mustAdd(t, f, "one")
	before, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	no := errors.New("no")
	for name, fn := range map[string]func(*accountfile.State) error{
		"changes nothing": func(*accountfile.State) error { return nil },
		"fails":           func(s *accountfile.State) error { s.Accounts = nil; return no },
	} {
		if err := f.Update(t.Context(), fn); err != nil && !errors.Is(err, no) {
			t.Errorf("%s: Update = %v", name, err)
		}
		if after, err := os.Stat(path); err != nil || !os.SameFile(before, after) {
			t.Errorf("%s: the file was replaced (%v)", name, err)
		}
		if n := len(view(t, f).Accounts); n != 1 {
			t.Errorf("%s: %d accounts, want 1", name, n)
		}
	}
}

// TestKeyRemovedMeanwhile refuses to store what no key opens.
func TestKeyRemovedMeanwhile(t *testing.T) {
	t.Parallel()
	f, _ := open(t, place(t))
	mustAdd(t, f, "one")
	a := account("late")
	a.KeyVersion = 7
	if err := add(t.Context(), f, a); fault.KindOf(err) != fault.Unavailable {
		t.Errorf("Update = %v, want a fault Unavailable", err)
	}
	if n := len(view(t, f).Accounts); n != 1 {
		t.Errorf("%d accounts, want 1", n)
	}
}

// TestOthersFile sees what other processes do to the file.
func TestOthersFile(t *testing.T) {
	t.Parallel()
	path := place(t)
	f, _ := open(t, path)
	mustAdd(t, f, "one")
	good := text(t, path)
	view(t, f)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if n := len(view(t, f).Accounts); n != 0 {
		t.Errorf("after it was removed: %d accounts, want none", n)
	}
	if err := os.WriteFile(path, []byte(good), 0o600); err != nil {
		t.Fatal(err)
	}
	if n := len(view(t, f).Accounts); n != 1 {
		t.Errorf("after it was put back: %d accounts, want 1", n)
	}
	mustAdd(t, f, "two")
	if n := len(view(t, f).Accounts); n != 2 {
		t.Errorf("after a change: %d accounts, want 2", n)
	}
}

func TestModeIsPutRight(t *testing.T) {
	t.Parallel()
	path := place(t)
	f, _ := open(t, path)
	mustRecord(t, f, "one")
	for _, path := range []string{path, path + ".audit"} {
		if err := os.Chmod(path, 0o644); err != nil {
			t.Fatal(err)
		}
		_, log := open(t, strings.TrimSuffix(path, ".audit"))
		if info, err := os.Stat(path); err != nil || info.Mode() != 0o600 || !strings.Contains(log.String(), "others could read") || !strings.Contains(log.String(), path) {
			t.Errorf("mode %v, %v, log %q; want 0600 and a word about it", info.Mode(), err, log)
		}
	}
}

// TestLink changes the file that a link leads to, and leaves the link.
func TestLink(t *testing.T) {
	t.Parallel()
	path := place(t)
	f, _ := open(t, path)
	mustAdd(t, f, "one")
	link := filepath.Join(t.TempDir(), "link.json")
	if err := os.Symlink(path, link); err != nil {
		t.Fatal(err)
	}
	linked, _ := open(t, link)
	mustAdd(t, linked, "two")
	if n := len(view(t, f).Accounts); n != 2 {
		t.Errorf("%d accounts, want 2", n)
	}
	if info, err := os.Lstat(link); err != nil || info.Mode()&os.ModeSymlink == 0 {
		t.Errorf("the link is %v, %v", info.Mode(), err)
	}
}

// TestLeftOver replaces what a process that died has left.
func TestLeftOver(t *testing.T) {
	t.Parallel()
	path := place(t)
	f, _ := open(t, path)
	elsewhere := filepath.Join(t.TempDir(), "elsewhere")
	for name, leave := range map[string]func() error{
		"half a file": func() error { return os.WriteFile(path+".tmp", []byte(`{"version": 1, "acc`), 0o644) },
		"a link":      func() error { return os.Symlink(elsewhere, path+".tmp") },
	} {
		if err := leave(); err != nil {
			t.Fatal(err)
		}
		mustAdd(t, f, name)
		if info, err := os.Lstat(path); err != nil || info.Mode() != 0o600 {
			t.Errorf("%s: mode %v, %v, want 0600", name, info.Mode(), err)
		}
	}
	if n := len(view(t, f).Accounts); n != 2 {
		t.Errorf("%d accounts, want 2", n)
	}
	if _, err := os.Stat(elsewhere); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("something was written where the link led: %v", err)
	}
}

func TestIgnored(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, file, there, want string }{
		{"none", "accounts.json", "", "/accounts.json*\n/broker.key\n"},
		{"others' lines", "accounts.json", "bin/\nnode_modules", "bin/\nnode_modules\n/accounts.json*\n/broker.key\n"},
		{"one is there", "accounts.json", "/broker.key\r\n", "/broker.key\r\n/accounts.json*\n"},
		{"all", "accounts.json", "*\n", "*\n"},
		{"a name with a meaning", "a [b]*?.json", "", "/a\\ \\[b]\\*\\?.json*\n/broker.key\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			if tt.there != "" {
				if err := os.WriteFile(filepath.Join(dir, ".gitignore"), []byte(tt.there), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			for range 2 { // the second time there is nothing to add
				open(t, filepath.Join(dir, tt.file), filepath.Join(dir, "broker.key"), filepath.Join(t.TempDir(), "other.key"), "")
			}
			if got := text(t, filepath.Join(dir, ".gitignore")); got != tt.want {
				t.Errorf(".gitignore = %q, want %q", got, tt.want)
			}
		})
	}
}

// TestLockIsHeld names the lock file while it is held, and continues when it is free.
func TestLockIsHeld(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		path := place(t)
		f, _ := open(t, path)
		mustAdd(t, f, "one")
		other, err := os.OpenFile(path+".lock", os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		if err := syscall.Flock(int(other.Fd()), syscall.LOCK_EX); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		err = add(t.Context(), f, account("two"))
		if fault.KindOf(err) != fault.Unavailable || !strings.Contains(err.Error(), path+".lock") || time.Since(began) != 10*time.Second {
			t.Errorf("Update = %v after %v, want a fault Unavailable that names the lock after 10 s", err, time.Since(began))
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := add(ctx, f, account("two")); !errors.Is(err, context.Canceled) {
			t.Errorf("Update of a caller who left = %v", err)
		}
		if n := len(view(t, f).Accounts); n != 1 {
			t.Errorf("%d accounts while somebody has the lock, want 1", n)
		}
		if err := other.Close(); err != nil {
			t.Fatal(err)
		}
		mustAdd(t, f, "two")
	})
}

func TestManyAtOnce(t *testing.T) {
	t.Parallel()
	path := place(t)
	const workers, each = 4, 15 // each waits for all others, and for no longer than 10 s
	var wg sync.WaitGroup
	for n := range workers {
		f, _ := open(t, path) // as other processes would
		wg.Go(func() {
			for i := range each {
				if err := add(t.Context(), f, account(fmt.Sprint(n, " ", i))); err != nil {
					t.Errorf("Update = %v", err)
				}
				if s, err := f.View(t.Context()); err != nil || len(s.Accounts) == 0 {
					t.Errorf("View = %v", err)
				}
			}
		})
	}
	wg.Wait()
	f, log := open(t, path)
	if n := len(view(t, f).Accounts); n != workers*each {
		t.Errorf("%d accounts, want %d", n, workers*each)
	}
	if log.String() != "" {
		t.Errorf("log: %s", log)
	}
}
