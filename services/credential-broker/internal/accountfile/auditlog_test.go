package accountfile_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"signalbox.dev/pkg/hashchain"
	"signalbox.dev/pkg/id"
	"signalbox.dev/services/credential-broker/internal/accountfile"
	"signalbox.dev/services/credential-broker/internal/audit"
)

// record adds rows with these details.
func record(ctx context.Context, f *accountfile.File, details ...string) error {
	return f.Update(ctx, func(s *accountfile.State) error {
		for _, d := range details {
			s.Record(audit.Row{Action: "changed", Provider: "openai", Origin: "shared", Service: "test", Detail: d})
		}
		return nil
	})
}

func mustRecord(t *testing.T, f *accountfile.File, details ...string) {
	t.Helper()
	if err := record(t.Context(), f, details...); err != nil {
		t.Fatalf("Update = %v", err)
	}
}

// recorded returns the details of the rows, and the problems of the chain and the lines.
func recorded(t *testing.T, f *accountfile.File) (details []string, problems string) {
	t.Helper()
	head, rows, err := f.Recorded(t.Context())
	if err != nil {
		t.Fatalf("Recorded = %v", err)
	}
	c := hashchain.New(id.Workspace{})
	var all []string
	for r, err := range rows {
		if err != nil {
			t.Fatalf("Recorded = %v", err)
		}
		if form := map[accountfile.Form]string{accountfile.Touched: "touched", accountfile.CutOff: "cut off", accountfile.Strange: "strange"}[r.Form]; form != "" {
			all = append(all, form)
		}
		if r.IsRow() {
			c.Add(r.Link())
			details = append(details, r.Detail)
		}
	}
	for _, p := range c.End(head) {
		all = append(all, fmt.Sprint(p.Kind, " ", p.Sequence))
	}
	return details, strings.Join(all, ", ")
}

func TestRecord(t *testing.T) {
	t.Parallel()
	path := place(t)
	f, _ := open(t, path)
	if details, problems := recorded(t, f); len(details) > 0 || problems != "" {
		t.Errorf("before anything: %q, %s", details, problems)
	}
	mustRecord(t, f, "one", "two")
	other, _ := open(t, path)
	mustRecord(t, other, "three \xff…", strings.Repeat("x", 100_000))
	mustRecord(t, f, "five")
	details, problems := recorded(t, other)
	want := []string{"one", "two", "three …", strings.Repeat("x", 8<<10), "five"}
	if diff := cmp.Diff(want, details); diff != "" || problems != "" {
		t.Errorf("rows (-want +got):\n%s%s", diff, problems)
	}
	if info, err := os.Stat(path + ".audit"); err != nil || info.Mode() != 0o600 {
		t.Errorf("mode %v, %v, want 0600", info.Mode(), err)
	}

	// What is not done is not recorded.
	no := errors.New("no")
	err := f.Update(t.Context(), func(s *accountfile.State) error {
		s.Record(audit.Row{Action: "removed"})
		return no
	})
	if details, _ := recorded(t, f); !errors.Is(err, no) || len(details) != 5 {
		t.Errorf("after %v there are %d rows, want 5", err, len(details))
	}
}

// TestRecordUndone takes back the rows about what could not be written.
func TestRecordUndone(t *testing.T) {
	t.Parallel()
	f, _ := open(t, place(t))
	mustRecord(t, f, "one")
	err := f.Update(t.Context(), func(s *accountfile.State) error {
		s.Pools = append(s.Pools, accountfile.Pool{Provider: strings.Repeat("x", 17<<20)})
		s.Record(audit.Row{Action: "changed", Detail: "too much"})
		return nil
	})
	mustRecord(t, f, "two")
	if details, problems := recorded(t, f); err == nil || !cmp.Equal(details, []string{"one", "two"}) || problems != "" {
		t.Errorf("after %v: %q, %s", err, details, problems)
	}
}

// TestUsesOnce writes the use of an account in a session once, in whatever process.
func TestUsesOnce(t *testing.T) {
	t.Parallel()
	path := place(t)
	first, _ := open(t, path)
	second, _ := open(t, path)
	a, b, session := id.New[id.Account](), id.New[id.Account](), id.New[id.Session]()
	used := func(f *accountfile.File, all ...id.Account) {
		t.Helper()
		err := f.Update(t.Context(), func(s *accountfile.State) error {
			for _, x := range all {
				s.Record(audit.Row{Action: "used", Account: x, Session: session, Detail: x.String()})
			}
			return nil
		})
		if err != nil {
			t.Fatalf("Update = %v", err)
		}
	}
	used(first, a, a)
	before := text(t, path)
	used(first, a)
	used(second, a)
	if text(t, path) != before {
		t.Error("the file is written where there is no new row")
	}
	used(second, b)
	used(first, a, b)
	third, _ := open(t, path)
	used(third, b, a)
	if details, problems := recorded(t, third); !cmp.Equal(details, []string{a.String(), b.String()}) || problems != "" {
		t.Errorf("rows %q, %s", details, problems)
	}
}

// TestUsesOfALargeAudit: a new process reads only the end of a large audit, while others wait. An
// older use gets one more row, and no more.
func TestUsesOfALargeAudit(t *testing.T) {
	t.Parallel()
	path := place(t)
	f, _ := open(t, path)
	session := id.New[id.Session]()
	used := func(f *accountfile.File, all ...id.Account) {
		t.Helper()
		err := f.Update(t.Context(), func(s *accountfile.State) error {
			for _, x := range all {
				s.Record(audit.Row{Action: "used", Account: x, Session: session, Detail: "use of " + x.String()})
			}
			return nil
		})
		if err != nil {
			t.Fatalf("Update = %v", err)
		}
	}
	long := slices.Repeat([]string{strings.Repeat("x", 8<<10)}, 17<<20/(8<<10))
	before, behind := id.New[id.Account](), id.New[id.Account]()
	used(f, before)
	mustRecord(t, f, long...)
	used(f, behind)
	again, _ := open(t, path)
	used(again, before, behind)
	used(again, before, behind)
	details, problems := recorded(t, again)
	details = slices.DeleteFunc(details, func(d string) bool { return d == long[0] })
	want := []string{"use of " + before.String(), "use of " + behind.String(), "use of " + before.String()}
	if !cmp.Equal(details, want) || problems != "" {
		t.Errorf("rows %q, %s, want %q", details, problems, want)
	}
}

// TestRecordTouched: changes to the audit are found, also after more rows were written.
func TestRecordTouched(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		touch func(lines []string) string
		want  string
		after string // another row was written
	}{
		{"nothing", func(l []string) string { return strings.Join(l, "") }, "", ""},
		{"a field", func(l []string) string { l[1] = strings.Replace(l[1], "two", "twa", 1); return strings.Join(l, "") }, "changed 2", "changed 2"},
		{"a field added", func(l []string) string {
			l[1] = strings.TrimSuffix(l[1], "}\n") + `,"extra":"really done by bob"}` + "\n"
			return strings.Join(l, "")
		}, "touched", "touched"},
		{"a field under another name too", func(l []string) string { l[1] = `{"Sequence":7,` + l[1][1:]; return strings.Join(l, "") }, "touched", "touched"},
		{"spaces", func(l []string) string { l[1] = strings.Replace(l[1], ",", ", ", 1); return strings.Join(l, "") }, "touched", "touched"},
		{"garbage at the end", func(l []string) string { return strings.Join(l, "") + "garbage\n" }, "strange", "strange"},
		{"garbage without a line end", func(l []string) string { return strings.Join(l, "") + "garbage" }, "strange", "strange"},
		{"an empty line", func(l []string) string { return l[0] + "\n" + l[1] + l[2] + l[3] }, "strange", "strange"},
		{"more than a row", func(l []string) string { return strings.Join(l, "") + `{"sequence":5} bob` }, "strange", "strange"},
		{"a row taken out", func(l []string) string { return l[0] + l[2] + l[3] }, "removed 2", "removed 2"},
		{"the last ones", func(l []string) string { return l[0] + l[1] }, "removed 3", "removed 3"},
		{"all", func([]string) string { return "" }, "removed 1", "removed 1"},
		{"garbage for a row", func(l []string) string { return l[0] + "garbage\n" + l[2] + l[3] }, "strange, removed 2", "strange, removed 2"},
		{"torn", func(l []string) string { return strings.Join(l, "") + `{"sequence":5,"id":"01` }, "cut off", "cut off"},
		{"torn at once", func(l []string) string { return strings.Join(l, "") + `{` }, "cut off", "cut off"},
		{"torn, and nothing behind it", func(l []string) string { return strings.Join(l, "") + `{"sequence":5,"id"` + "\x00\x00" }, "cut off", "cut off"},
		{"long garbage", func(l []string) string { return strings.Join(l, "") + strings.Repeat("x", 300<<10) }, "strange", "strange"},
		{"a line end lost", func(l []string) string { return strings.TrimSpace(strings.Join(l, "")) }, "", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			path := place(t)
			f, _ := open(t, path)
			mustRecord(t, f, "one", "two", "three", "four")
			lines := strings.SplitAfter(text(t, path+".audit"), "\n")
			write(t, path+".audit", tt.touch(lines))
			if _, problems := recorded(t, f); problems != tt.want {
				t.Errorf("%q, want %q", problems, tt.want)
			}
			mustRecord(t, f, "five")
			details, problems := recorded(t, f)
			if problems != tt.after || details[len(details)-1] != "five" {
				t.Errorf("after another row: %q, %q, want %q", details, problems, tt.after)
			}
			mustRecord(t, f, "six")
			if _, problems := recorded(t, f); problems != tt.after {
				t.Errorf("after one more row: %q, want %q", problems, tt.after)
			}
		})
	}
}

// TestPipes: a pipe without a writer, in the place of the file or of the audit, is not waited for.
func TestPipes(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "accounts.json")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	const want = "it is not a regular file"
	if f, err := accountfile.Open(t.Context(), path, slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("Open = %v, %v, want %q", f, err, want)
	}
	path = place(t)
	f, _ := open(t, path)
	if err := syscall.Mkfifo(path+".audit", 0o600); err != nil {
		t.Fatal(err)
	}
	if err := record(t.Context(), f, "one"); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("Update = %v, want %q", err, want)
	}
	_, rows, err := f.Recorded(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for r, err := range rows {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Recorded yields %+v, %v, want %q", r, err, want)
		}
	}
}

// TestRecordOfAnOlderFile appends after the existing rows.
func TestRecordOfAnOlderFile(t *testing.T) {
	t.Parallel()
	path := place(t)
	f, _ := open(t, path)
	mustRecord(t, f, "one")
	backup := text(t, path)
	mustRecord(t, f, "two", "three")
	write(t, path, backup)
	mustRecord(t, f, "four")
	if details, problems := recorded(t, f); !cmp.Equal(details, []string{"one", "two", "three", "four"}) || problems != "" {
		t.Errorf("rows %q, %s", details, problems)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	mustRecord(t, f, "five")
	if details, problems := recorded(t, f); len(details) != 5 || problems != "" {
		t.Errorf("rows %q, %s", details, problems)
	}
}

// FuzzRecorded: whatever the audit holds, rows are appended to it, and its content stays.
func FuzzRecorded(f *testing.F) {
	f.Add([]byte(`{"sequence": 1, "detail": "one", "prev": "AA==", "hash": "AA=="}` + "\n"))
	f.Add([]byte("\n\n{}\n{\"sequence\": 9223372036854775806}"))
	f.Add([]byte("{\"sequence\": 9007199254740992}"))
	f.Fuzz(func(t *testing.T, b []byte) {
		path := filepath.Join(t.TempDir(), "accounts.json")
		file, err := accountfile.Open(t.Context(), path, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		write(t, path+".audit", string(b))
		mustRecord(t, file, "first")
		mustRecord(t, file, "second")
		details, _ := recorded(t, file)
		if n := len(details); n < 2 || details[n-2] != "first" || details[n-1] != "second" {
			t.Errorf("the last rows are %q", details)
		}
		if got := text(t, path+".audit"); !strings.HasPrefix(got, string(b)) {
			t.Errorf("what was there is %q", got)
		}
	})
}
