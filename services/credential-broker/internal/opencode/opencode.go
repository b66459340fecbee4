// Package opencode reads the credentials that other programs of a single user keep, so that they
// can be imported: opencode's auth.json, its file of several Anthropic accounts, and environment
// variables. It only reads. Files must be regular and are bounded; one that does not parse is an
// error that says where, but never quotes the file, which holds secrets.
//
// Merge combines those that are the same credential.
package opencode

import (
	"bytes"
	"cmp"
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
	Source   string // the file or variable
	Provider string
	Label    string // an e-mail address, if there is one
	// Key is an API key. Without one somebody signed in, and there is a Refresh token.
	Key, Access, Refresh vault.Secret
	Expires              time.Time // of Access; zero if unknown
	Enabled              bool      // false if the user switched it off
	Used                 time.Time // the last use; zero if unknown
	Limited              time.Time // until then the provider wants no requests
	Current              bool      // it is the one in use
	Skip                 string    // why it cannot be imported; empty if it can
}

// ReadAuth reads auth.json. A missing file holds nothing.
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
			f.Skip = missing(f.Key, "it contains no key")
		case "oauth":
			f.Access, f.Refresh, f.Expires = secret(e.Access), secret(e.Refresh), moment(e.Expires)
			f.Skip = missing(f.Refresh, "it contains no refresh token")
		default:
			f.Skip = "it is neither a key nor a sign-in"
		}
		out = append(out, f)
	}
	return out, nil
}

// ReadAccounts reads the file of several Anthropic accounts. A missing file holds nothing.
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
		return nil, fmt.Errorf("%s has version %d, and only version 1 is supported: another release of the program wrote it", path, file.Version)
	}
	if len(file.Accounts) > maxAccounts {
		return nil, fmt.Errorf("%s contains %d accounts, and at most %d are imported from a file: remove some of them there", path, len(file.Accounts), maxAccounts)
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
		f.Skip = missing(f.Refresh, "it contains no refresh token")
		out = append(out, f)
	}
	return out, nil
}

// FromVariable reads the key of a provider from a variable of an environment in the form of
// os.Environ. It returns nothing if the variable is not set.
func FromVariable(environ []string, variable, provider string) []Found {
	for _, kv := range environ {
		if text, ok := strings.CutPrefix(kv, variable+"="); ok && secret(text).Reveal() != "" {
			return []Found{{Source: variable, Provider: provider, Key: secret(text), Enabled: true}}
		}
	}
	return nil
}

// Merge combines credentials with the same refresh token, or the same key of a provider, into
// the one that was used last. It reports how many it dropped.
func Merge(all []Found) (kept []Found, dropped int) {
	type credential struct{ provider, key, refresh string }
	at := map[credential]int{}
	for _, f := range all {
		c := credential{f.Provider, f.Key.Reveal(), f.Refresh.Reveal()}
		switch i, twice := at[c]; {
		case f.Skip != "":
			kept = append(kept, f)
		case twice:
			kept[i] = merge(kept[i], f)
			dropped++
		default:
			at[c] = len(kept)
			kept = append(kept, f)
		}
	}
	return kept, dropped
}

func merge(a, b Found) Found {
	if b.Used.After(a.Used) {
		a, b = b, a
	}
	if a.Used.Equal(b.Used) { // usually because one file does not say
		a.Enabled, a.Current = a.Enabled && b.Enabled, a.Current || b.Current
		if b.Limited.After(a.Limited) {
			a.Limited = b.Limited
		}
	}
	a.Label = cmp.Or(a.Label, b.Label)
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

// moment returns a time given in milliseconds; the zero time if it is implausible.
func moment(ms float64) time.Time {
	if math.IsNaN(ms) || ms <= 0 || ms > 4e12 { // the year 2096
		return time.Time{}
	}
	return time.UnixMilli(int64(ms))
}

// read decodes a file that may be missing.
func read(path string, into any) (found bool, err error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // opening a pipe would block without a writer
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
		return false, fmt.Errorf("%s is damaged%s: repair it, or leave it out with --source", path, where(b, err))
	}
	return true, nil
}

// where returns the line of an error, if it has one.
func where(b []byte, err error) string {
	var offset int64
	if e, ok := errors.AsType[*json.SyntaxError](err); ok {
		offset = e.Offset
	} else if e, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		offset = e.Offset
	} else {
		return ""
	}
	return fmt.Sprintf(" at line %d", 1+bytes.Count(b[:min(offset, int64(len(b)))], []byte("\n")))
}
