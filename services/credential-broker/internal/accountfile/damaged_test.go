package accountfile_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/services/credential-broker/internal/accountfile"
)

// written is what of a State is in the file.
var written = cmpopts.IgnoreUnexported(accountfile.State{})

// sample is the text of a file with something of everything.
func sample(t testing.TB) string {
	t.Helper()
	b, err := os.ReadFile("testdata/accounts.json")
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// aside returns the files that were set aside, by name.
func aside(t *testing.T, path string) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, name := range beside(t, path) {
		if strings.Contains(name, ".damaged-") {
			full := filepath.Join(filepath.Dir(path), name)
			all[full] = text(t, full)
		}
	}
	return all
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestDamagedIsKeptAside(t *testing.T) {
	t.Parallel()
	good := sample(t)
	for name, bad := range map[string]string{
		"empty":            "",
		"cut off":          good[:len(good)/2],
		"nearly whole":     strings.TrimRight(good, "}\n"),
		"zeros":            strings.Repeat("\x00", 4096),
		"torn":             good[:200] + strings.Repeat("\x00", 300) + good[500:],
		"two in one":       good + good,
		"not JSON":         "accounts:\n- openai\n",
		"other JSON":       `["accounts"]`,
		"no version":       `{"accounts": []}`,
		"negative":         `{"version": -1, "accounts": []}`,
		"wrong kind":       `{"version": 1, "accounts": "none"}`,
		"no id":            `{"version": 1, "accounts": [{"provider": "openai"}]}`,
		"an account twice": strings.Replace(good, "0198a000-0000-7000-8000-000000000002", "0198a000-0000-7000-8000-000000000001", 1),
		"no secret":        `{"version": 1, "accounts": [{"id": "0198a000-0000-7000-8000-000000000001"}]}`,
		"not base64":       strings.Replace(good, `"wrapped": "`, `"wrapped": "%`, 1),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := place(t)
			write(t, path, bad)
			f, log := open(t, path)
			refused(t, f, path)
			kept := aside(t, path)
			for full, text := range kept {
				if text != bad || !strings.Contains(log.String(), full) {
					t.Errorf("kept aside as %s: %.80q; log %s", full, text, log)
				}
				if info, err := os.Stat(full); err != nil || info.Mode() != 0o600 {
					t.Errorf("mode of %s: %v, %v", full, info.Mode(), err)
				}
			}
			if len(kept) != 1 || strings.Contains(log.String(), "planted") {
				t.Errorf("kept aside: %d files, want 1; log %s", len(kept), log)
			}
			again, log := open(t, path)
			refused(t, again, path)
			if log.String() != "" {
				t.Errorf("it is told of again where it is only found: %s", log)
			}

			write(t, path, good)
			for _, f := range []*accountfile.File{f, again} {
				if n := len(view(t, f).Accounts); n != 2 {
					t.Errorf("after a good one was put back: %d accounts, want 2", n)
				}
			}
		})
	}
}

// TestBeingWritten waits while a file is restored byte by byte, as by cp, and leaves it as it is.
func TestBeingWritten(t *testing.T) {
	t.Parallel()
	path := place(t)
	good := sample(t) + "\n" // which Update would not write
	write(t, path, "")
	file, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	wrote := make(chan error)
	go func() {
		var err error
		for n := 0; n < len(good) && err == nil; n += 100 {
			_, err = file.WriteString(good[n:min(n+100, len(good))])
			<-time.After(10 * time.Millisecond) // so that it is looked at meanwhile
		}
		wrote <- errors.Join(err, file.Close())
	}()
	f, log := open(t, path)
	if n := len(view(t, f).Accounts); n != 2 {
		t.Errorf("%d accounts, want 2", n)
	}
	if err := <-wrote; err != nil {
		t.Fatal(err)
	}
	if text(t, path) != good {
		t.Error("the file is not as it was restored")
	}
	if n := len(aside(t, path)); n != 0 || log.String() != "" {
		t.Errorf("%d files are kept aside; log %s", n, log)
	}
}

// refused wants nothing to be read or written.
func refused(t *testing.T, f *accountfile.File, path string) {
	t.Helper()
	_, viewed := f.View(t.Context())
	updated := f.Update(t.Context(), func(*accountfile.State) error { t.Error("it is changed"); return nil })
	for what, err := range map[string]error{"View": viewed, "Update": updated} {
		if fault.KindOf(err) != fault.Conflict || !errors.Is(err, accountfile.ErrDamaged) || !strings.Contains(err.Error(), path+" was damaged and has been set aside as "+path+".damaged-") {
			t.Errorf("%s = %v, want a fault Conflict that says where the file is", what, err)
		}
	}
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("there is a file in its place: %v", err)
	}
}

// TestDamagedAgain replaces no file that was set aside, and starts again once all are moved away.
func TestDamagedAgain(t *testing.T) {
	t.Parallel()
	path := place(t)
	f, _ := open(t, path)
	want := map[string]bool{}
	for _, bad := range []string{"first", "second", "third"} {
		write(t, path, bad)
		refused(t, f, path)
		want[bad] = true
	}
	got := map[string]bool{}
	kept := aside(t, path)
	for _, text := range kept {
		got[text] = true
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("kept aside (-want +got):\n%s", diff)
	}
	for full := range kept {
		refused(t, f, path)
		if err := os.Rename(full, filepath.Join(t.TempDir(), "elsewhere")); err != nil {
			t.Fatal(err)
		}
	}
	mustAdd(t, f, "new")
	if n := len(view(t, f).Accounts); n != 1 {
		t.Errorf("%d accounts afterwards, want 1", n)
	}
}

// TestDamagedMeanwhile is logged by each process that knew the file.
func TestDamagedMeanwhile(t *testing.T) {
	t.Parallel()
	path := place(t)
	f, log := open(t, path)
	mustAdd(t, f, "one")
	view(t, f)
	write(t, path, "{")
	other, _ := open(t, path) // sets it aside
	refused(t, other, path)
	refused(t, f, path)
	if n := strings.Count(log.String(), "level=ERROR"); n != 1 {
		t.Errorf("%d errors are logged, want 1: %s", n, log)
	}
}

// TestDamagedBehindLink looks for damaged files in the folder of the link's target.
func TestDamagedBehindLink(t *testing.T) {
	t.Parallel()
	path := place(t)
	write(t, path, "{")
	link := filepath.Join(t.TempDir(), "link.json")
	if err := os.Symlink(path, link); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second time the link leads nowhere
		f, _ := open(t, link)
		refused(t, f, path)
	}
}

// TestNotToBeTouched leaves alone a newer version's file, and what is no regular file.
func TestNotToBeTouched(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, text string
		kind       fault.Kind
	}{
		{"newer", `{"version": 2, "accounts": {"by": "name"}}`, fault.Conflict},
		{"a field of tomorrow", strings.Replace(sample(t), `"enabled"`, `"colour": "red", "enabled"`, 1), fault.Conflict},
		{"too large", strings.Repeat(" ", 17<<20), fault.Unavailable},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			path := place(t)
			write(t, path, sample(t))
			f, log := open(t, path)
			write(t, path, tt.text)
			if _, err := accountfile.Open(t.Context(), path, log.logger()); fault.KindOf(err) != tt.kind || !strings.Contains(err.Error(), path) {
				t.Errorf("Open = %v, want a fault %v that names the file", err, tt.kind)
			}
			_, err := f.View(t.Context())
			if fault.KindOf(err) != tt.kind {
				t.Errorf("View = %v, want a fault %v", err, tt.kind)
			}
			if tt.kind == fault.Conflict && !strings.Contains(err.Error(), "use that version or a later one here too") {
				t.Errorf("View = %v, want an error that says what to do", err)
			}
			if err := add(t.Context(), f, account("new")); fault.KindOf(err) != tt.kind {
				t.Errorf("Update = %v, want a fault %v", err, tt.kind)
			}
			if text(t, path) != tt.text || len(aside(t, path)) != 0 {
				t.Error("the file was touched")
			}
		})
	}
	t.Run("a folder", func(t *testing.T) {
		t.Parallel()
		path := t.TempDir()
		if _, err := accountfile.Open(t.Context(), path, (&lines{}).logger()); fault.KindOf(err) != fault.Unavailable {
			t.Errorf("Open = %v, want a fault Unavailable", err)
		}
	})
}

// TestFields: a new field needs a new version, so that a program that does not know the field
// refuses the file, by its version, before it can lose the content.
func TestFields(t *testing.T) {
	t.Parallel()
	var all []string
	var walk func(at string, t reflect.Type)
	walk = func(at string, t reflect.Type) {
		for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
			t = t.Elem()
		}
		if t.Kind() != reflect.Struct || !strings.HasSuffix(t.PkgPath(), "/accountfile") && !strings.HasSuffix(t.PkgPath(), "/vault") {
			return
		}
		for field := range t.Fields() {
			switch name, _, _ := strings.Cut(field.Tag.Get("json"), ","); {
			case name == "" && field.Anonymous:
				walk(at, field.Type)
			case name != "" && name != "-":
				all = append(all, at+name)
				walk(at+name+".", field.Type)
			}
		}
	}
	walk("", reflect.TypeFor[accountfile.State]())
	got := fmt.Sprintf("version %d\n%s\n", accountfile.Version, strings.Join(all, "\n"))
	want, err := os.ReadFile("testdata/fields.txt")
	if diff := cmp.Diff(string(want), got); err != nil || diff != "" {
		t.Errorf("%v; a new field is a new version (-want +got):\n%s", err, diff)
	}
}

// TestEveryPrefix: a file that was cut off anywhere is whole or damaged, and never
// something in between.
func TestEveryPrefix(t *testing.T) {
	t.Parallel()
	good := sample(t)
	want, err := accountfile.Decode([]byte(good))
	if err != nil {
		t.Fatal(err)
	}
	for n := range len(good) {
		got, err := accountfile.Decode([]byte(good[:n]))
		if whole := strings.TrimSpace(good[n:]) == ""; whole != (err == nil) {
			t.Fatalf("the first %d of %d bytes: %v", n, len(good), err)
		} else if whole && !cmp.Equal(want, got, written) {
			t.Fatalf("the first %d of %d bytes: %s", n, len(good), cmp.Diff(want, got, written))
		}
	}
}

// FuzzDecode: whatever the bytes, they are refused or are a State that is written as it
// was read.
func FuzzDecode(f *testing.F) {
	good := sample(f)
	f.Add([]byte(good))
	r := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		b := []byte(good)
		for range 1 + r.IntN(4) {
			b[r.IntN(len(b))] = byte(r.IntN(256))
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := accountfile.Decode(b)
		if err != nil {
			return
		}
		path := place(t)
		write(t, path, string(b))
		file, _ := open(t, path)
		if err := file.Update(t.Context(), func(s *accountfile.State) error { s.Pools = nil; return nil }); err != nil {
			t.Fatalf("Update = %v", err)
		}
		s.Pools = nil
		if diff := cmp.Diff(s.Accounts, view(t, file).Accounts, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("accounts (-want +got):\n%s", diff)
		}
	})
}
