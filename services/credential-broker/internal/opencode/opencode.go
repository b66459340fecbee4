// Package opencode reads the credentials that other programs of a single user keep, to
// bring them along: opencode's auth.json, its file of several Anthropic accounts, and
// variables of the environment. It only reads. Files are bounded, and must be regular
// ones; what does not parse is an error that says where, never with a piece of the
// file: it holds secrets.
//
// Merge makes one of those that are the same credential.
package opencode

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"signalbox.dev/services/credential-broker/internal/vault"
)

const (
	maxFile     = 1 << 20
	maxAccounts = 10 // of the file of several accounts
	maxText     = 8 << 10
)

// Found is one credential.
type Found struct {
	// Source is the file, or the variable.
	Source   string
	Provider string
	// Label is an address of mail, where there is one.
	Label string
	// Key is an API key; without it somebody signed in, and Refresh is there.
	Key, Access, Refresh vault.Secret
	// Expires is when the access token does; zero where nobody knows.
	Expires time.Time
	// Enabled is false where the person has switched it off.
	Enabled bool
	// Used is when it was used last, as far as that is known.
	Used time.Time
	// Limited is until when the provider wants no requests; zero for now.
	Limited time.Time
	// Current says that it is the one in use.
	Current bool
	// Skip says why it cannot be brought along; empty where it can.
	Skip string
}

// ReadAuth reads auth.json. A file that is not there holds nothing.
func ReadAuth(path string) ([]Found, error) {
	var file map[string]struct {
		Type    string  `json:"type"`
		Key     string  `json:"key"`
		Refresh string  `json:"refresh"`
		Access  string  `json:"access"`
		Expires float64 `json:"expires"`
	}
	if found, err := read(path, &file); err != nil || !found {
		return nil, err
	}
	var out []Found
	for _, provider := range slices.Sorted(maps.Keys(file)) {
		e := file[provider]
		f := Found{Source: path, Provider: provider, Enabled: true}
		switch e.Type {
		case "api":
			f.Key = secret(e.Key)
			f.Skip = missing(f.Key, "it holds no key")
		case "oauth":
			f.Access, f.Refresh, f.Expires = secret(e.Access), secret(e.Refresh), moment(e.Expires)
			f.Skip = missing(f.Refresh, "it holds no refresh token")
		default:
			f.Skip = "it is neither a key nor a sign-in"
		}
		out = append(out, f)
	}
	return out, nil
}

// ReadAccounts reads the file of several Anthropic accounts. A file that is not there
// holds nothing.
func ReadAccounts(path string) ([]Found, error) {
	var file struct {
		Version  int `json:"version"`
		Accounts []struct {
			Email    string              `json:"email"`
			Refresh  string              `json:"refreshToken"`
			LastUsed float64             `json:"lastUsed"`
			Enabled  *bool               `json:"enabled"`
			Limits   map[string]*float64 `json:"rateLimitResetTimes"`
		} `json:"accounts"`
		Active int `json:"activeIndex"`
	}
	if found, err := read(path, &file); err != nil || !found {
		return nil, err
	}
	if file.Version != 1 {
		return nil, fmt.Errorf("%s is of version %d, and only version 1 is known: it was made by another release of the program", path, file.Version)
	}
	if len(file.Accounts) > maxAccounts {
		return nil, fmt.Errorf("%s holds %d accounts, and %d are the most that are taken from a file: remove some of them there", path, len(file.Accounts), maxAccounts)
	}
	var out []Found
	for i, e := range file.Accounts {
		f := Found{
			Source: path, Provider: "anthropic", Label: e.Email, Refresh: secret(e.Refresh), Used: moment(e.LastUsed),
			Enabled: e.Enabled == nil || *e.Enabled, Current: i == file.Active,
		}
		for _, until := range e.Limits {
			if until != nil && moment(*until).After(f.Limited) {
				f.Limited = moment(*until)
			}
		}
		f.Skip = missing(f.Refresh, "it holds no refresh token")
		out = append(out, f)
	}
	return out, nil
}

// FromEnvironment reads variables, as os.Environ gives them.
func FromEnvironment(environ []string) []Found {
	var out []Found
	for _, v := range []struct{ variable, provider string }{
		{"ANTHROPIC_API_KEY", "anthropic"}, {"OPENAI_API_KEY", "openai"}, {"OPENROUTER_API_KEY", "openrouter"},
	} {
		for _, kv := range environ {
			if text, ok := strings.CutPrefix(kv, v.variable+"="); ok && secret(text).Reveal() != "" {
				out = append(out, Found{Source: v.variable, Provider: v.provider, Key: secret(text), Enabled: true})
			}
		}
	}
	return out
}

// Merge makes one of those with the same refresh token, or the same key of a provider:
// the one that was used last. It reports how many that made fewer.
func Merge(all []Found) (kept []Found, fewer int) {
	type credential struct{ provider, text string }
	at := map[credential]int{}
	for _, f := range all {
		if f.Skip != "" {
			kept = append(kept, f)
			continue
		}
		c := credential{f.Provider, f.Key.Reveal()}
		if f.Key.IsZero() {
			c.text = f.Refresh.Reveal()
		}
		i, twice := at[c]
		if !twice {
			at[c] = len(kept)
			kept = append(kept, f)
			continue
		}
		fewer++
		kept[i] = merge(kept[i], f)
	}
	return kept, fewer
}

func merge(a, b Found) Found {
	if b.Used.After(a.Used) {
		a, b = b, a
	}
	if a.Used.Equal(b.Used) { // mostly because one file does not say
		a.Enabled, a.Current = a.Enabled && b.Enabled, a.Current || b.Current
		if b.Limited.After(a.Limited) {
			a.Limited = b.Limited
		}
	}
	if a.Label == "" {
		a.Label = b.Label
	}
	if a.Access.IsZero() {
		a.Access, a.Expires = b.Access, b.Expires
	}
	return a
}

func missing(s vault.Secret, reason string) string {
	if s.IsZero() {
		return reason
	}
	return ""
}

func secret(text string) vault.Secret {
	if text = strings.TrimSpace(text); len(text) <= maxText {
		return vault.NewSecret(text)
	}
	return vault.Secret{}
}

// moment returns a time in milliseconds; the zero time where it makes no sense.
func moment(ms float64) time.Time {
	if math.IsNaN(ms) || ms <= 0 || ms > 4e12 { // the year 2096
		return time.Time{}
	}
	return time.UnixMilli(int64(ms))
}

// read reads a file that may be missing.
func read(path string, into any) (found bool, err error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a pipe would have it wait for somebody who writes
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read credentials: %w", err)
	}
	defer func() { _ = f.Close() }() // it was only read
	info, err := f.Stat()
	if err != nil {
		return false, fmt.Errorf("read credentials: %w", err)
	}
	if !info.Mode().IsRegular() {
		return false, fmt.Errorf("%s is not a file", path)
	}
	b, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return false, fmt.Errorf("read credentials: %w", err)
	}
	if len(b) > maxFile {
		return false, fmt.Errorf("%s is larger than 1 MiB: it is not a file of credentials", path)
	}
	if err := json.Unmarshal(b, into); err != nil {
		// Not the error itself: it may quote the file.
		return false, fmt.Errorf("%s is damaged%s: mend it, or leave it out with --source", path, where(b, err))
	}
	return true, nil
}

func where(b []byte, err error) string {
	offset := int64(-1)
	if e, ok := errors.AsType[*json.SyntaxError](err); ok {
		offset = e.Offset
	}
	if e, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		offset = e.Offset
	}
	if offset < 0 || offset > int64(len(b)) {
		return ""
	}
	return fmt.Sprintf(" at line %d", 1+strings.Count(string(b[:offset]), "\n"))
}
