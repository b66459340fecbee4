package opencode_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"signalbox.dev/services/credential-broker/internal/opencode"
)

func file(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file.json")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// texts returns each Found as text, with its secrets.
func texts(all []opencode.Found) []string {
	var out []string
	for _, f := range all {
		text := strings.TrimSpace(fmt.Sprintf("%s %s key=%s access=%s refresh=%s enabled=%t current=%t %s",
			f.Provider, f.Label, f.Key.Reveal(), f.Access.Reveal(), f.Refresh.Reveal(), f.Enabled, f.Current, f.Skip))
		for _, at := range []time.Time{f.Expires, f.Used, f.Limited} {
			if !at.IsZero() {
				text += fmt.Sprint(" ", at.UnixMilli())
			}
		}
		out = append(out, text)
	}
	return out
}

func TestReadAuth(t *testing.T) {
	t.Parallel()
	got, err := opencode.ReadAuth(file(t, `{
		"openai": {"type": "api", "key": " sk-1 "},
		"anthropic": {"type": "oauth", "refresh": "r1", "access": "a1", "expires": 1700000000000},
		"empty": {"type": "api"}, "lost": {"type": "oauth", "access": "a2"}, "odd": {"type": "wellknown", "key": "k"}}`))
	want := []string{
		"anthropic  key= access=a1 refresh=r1 enabled=true current=false 1700000000000",
		"empty  key= access= refresh= enabled=true current=false it contains no key",
		"lost  key= access=a2 refresh= enabled=true current=false it contains no refresh token",
		"odd  key= access= refresh= enabled=true current=false it is neither a key nor a sign-in",
		"openai  key=sk-1 access= refresh= enabled=true current=false",
	}
	if diff := cmp.Diff(want, texts(got)); err != nil || diff != "" {
		t.Errorf("ReadAuth: %v (-want +got):\n%s", err, diff)
	}
}

func TestReadAccounts(t *testing.T) {
	t.Parallel()
	got, err := opencode.ReadAccounts(file(t, `{"version": 1, "activeIndex": 1, "accounts": [
		{"email": "a@x", "refreshToken": "r1", "addedAt": 1, "lastUsed": 1700000000000, "enabled": false, "rateLimitResetTimes": {"m": 1700000000001, "n": 1700000000002, "o": null}},
		{"refreshToken": "r2", "lastUsed": -5, "consecutiveFailures": 3, "lastFailureTime": 9e99},
		{"email": "c@x"}]}`))
	want := []string{
		"anthropic a@x key= access= refresh=r1 enabled=false current=false 1700000000000 1700000000002",
		"anthropic  key= access= refresh=r2 enabled=true current=true",
		"anthropic c@x key= access= refresh= enabled=true current=false it contains no refresh token",
	}
	if diff := cmp.Diff(want, texts(got)); err != nil || diff != "" {
		t.Errorf("ReadAccounts: %v (-want +got):\n%s", err, diff)
	}
}

func TestFilesThatCannotBeRead(t *testing.T) {
	t.Parallel()
	const secret = "planted-secret"
	missing := filepath.Join(t.TempDir(), "missing")
	if got, err := opencode.ReadAuth(missing); got != nil || err != nil {
		t.Errorf("ReadAuth of a file that is not there = %v, %v, want nothing", got, err)
	}
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	many := `{"version": 1, "accounts": [` + strings.TrimSuffix(strings.Repeat(`{"refreshToken": "r"},`, 11), ",") + `]}`
	for _, tt := range []struct {
		name, path, want string
		read             func(string) ([]opencode.Found, error)
	}{
		{"damaged", file(t, "{\n\"openai\": "+secret), "is damaged at line 2: repair it", opencode.ReadAuth},
		{"of another form", file(t, `{"openai": "`+secret+`"}`), "is damaged at line 1", opencode.ReadAuth},
		{"too large", file(t, strings.Repeat(" ", 1<<20)+secret), "is larger than 1 MiB", opencode.ReadAuth},
		{"a folder", t.TempDir(), "is not a file", opencode.ReadAuth},
		{"a pipe", pipe, "is not a file", opencode.ReadAuth},
		{"of another version", file(t, `{"version": 2}`), "has version 2, and only version 1", opencode.ReadAccounts},
		{"too many accounts", file(t, many), "contains 11 accounts, and at most 10 are imported", opencode.ReadAccounts},
	} {
		got, err := tt.read(tt.path)
		if err == nil || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), secret) || got != nil {
			t.Errorf("%s: %v, %v, want %q and nothing of the file", tt.name, got, err, tt.want)
		}
	}
}

func TestMerge(t *testing.T) {
	t.Parallel()
	auth, err := opencode.ReadAuth(file(t, `{"anthropic": {"type": "oauth", "refresh": "r1", "access": "a1", "expires": 1700000000000},
		"openai": {"type": "api", "key": "sk-1"}, "anthropic-too": {"type": "oauth", "refresh": "r2"}}`))
	if err != nil {
		t.Fatal(err)
	}
	// If neither file knows when it was used, what either says counts.
	auth[1].Provider = "anthropic"
	accounts, err := opencode.ReadAccounts(file(t, `{"version": 1, "activeIndex": 4, "accounts": [
		{"email": "old@x", "refreshToken": "r1", "lastUsed": 5}, {"email": "new@x", "refreshToken": "r1", "lastUsed": 7, "enabled": false},
		{"email": "lost@x"}, {"email": "lost too@x"},
		{"email": "off@x", "refreshToken": "r2", "enabled": false}]}`))
	if err != nil {
		t.Fatal(err)
	}
	environ := []string{"OPENAI_API_KEY=sk-1", "OPENROUTER_API_KEY=sk-1", "ANTHROPIC_API_KEY= "}
	env := append(opencode.FromVariable(environ, "OPENAI_API_KEY", "openai"), opencode.FromVariable(environ, "OPENROUTER_API_KEY", "openrouter")...)
	env = append(env, opencode.FromVariable(environ, "ANTHROPIC_API_KEY", "anthropic")...)
	got, dropped := opencode.Merge(append(append(auth, accounts...), env...))
	want := []string{
		"anthropic new@x key= access=a1 refresh=r1 enabled=false current=false 1700000000000 7",
		"anthropic off@x key= access= refresh=r2 enabled=false current=true",
		"openai  key=sk-1 access= refresh= enabled=true current=false",
		"anthropic lost@x key= access= refresh= enabled=true current=false it contains no refresh token",
		"anthropic lost too@x key= access= refresh= enabled=true current=false it contains no refresh token",
		"openrouter  key=sk-1 access= refresh= enabled=true current=false",
	}
	if diff := cmp.Diff(want, texts(got)); dropped != 4 || diff != "" {
		t.Errorf("Merge dropped %d, want 4 (-want +got):\n%s", dropped, diff)
	}
}
