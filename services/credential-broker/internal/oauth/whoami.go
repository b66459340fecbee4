package oauth

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
	"unicode"
)

// Whoami says how a provider is asked which of its accounts a token belongs to.
type Whoami struct {
	URL     string            `yaml:"url"` // empty not to ask
	Headers map[string]string `yaml:"headers"`
	// At are paths into the answer's JSON, such as user.name. The first that leads to a text
	// counts.
	At []string `yaml:"at"`
}

const (
	whoamiTimeout = 10 * time.Second
	maxName       = 200
)

// Whoami asks the provider, once, for the name of the account that a grant belongs to; empty
// if the provider does not say.
func (k *Keeper) Whoami(ctx context.Context, ref Ref, p *Provider) (string, error) {
	if p.Whoami.URL == "" {
		return "", nil
	}
	ctx, cancel := context.WithTimeout(ctx, whoamiTimeout)
	defer cancel()
	token, err := k.Token(ctx, ref)
	if err != nil {
		return "", err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.Whoami.URL, nil)
	if err != nil {
		return "", errors.New("the endpoint is not a URL")
	}
	req.Header.Set("Accept", "application/json")
	for name, value := range p.Whoami.Headers {
		req.Header.Set(name, value)
	}
	req.Header.Set("User-Agent", k.cfg.UserAgent)
	req.Header.Set("Authorization", "Bearer "+token.Secret.Reveal())
	res, err := k.client.Do(req)
	if err != nil {
		return "", fmt.Errorf("ask %s for a token's owner: %w", p.Name, sanitize(err))
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	if err != nil {
		return "", fmt.Errorf("ask %s for a token's owner: %w", p.Name, sanitize(err))
	}
	if res.StatusCode != http.StatusOK {
		return "", fmt.Errorf("ask %s for a token's owner: status %d", p.Name, res.StatusCode)
	}
	return name(body, p.Whoami.At, token.Secret.Reveal()), nil
}

// name returns the text at the first path that leads to one, unless it contains the token.
func name(body []byte, paths []string, token string) string {
	for _, path := range paths {
		at := json.RawMessage(body)
		for step := range strings.SplitSeq(path, ".") {
			var object map[string]json.RawMessage
			if json.Unmarshal(at, &object) != nil {
				at = nil
				break
			}
			at = object[step]
		}
		var text string
		if json.Unmarshal(at, &text) != nil {
			continue
		}
		text = strings.TrimSpace(printable(text))
		if text == "" || strings.Contains(text, token) {
			continue
		}
		if r := []rune(text); len(r) > maxName {
			return string(r[:maxName])
		}
		return text
	}
	return ""
}

// printable removes from a foreign text what affects a terminal, or what a database does not
// accept.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) {
			return -1
		}
		return r
	}, strings.ToValidUTF8(text, ""))
}
