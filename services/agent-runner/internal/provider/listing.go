package provider

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	credentialv1 "signalbox.dev/proto/signalbox/credential/v1"
	"signalbox.dev/services/agent-runner/internal/llm"
)

// Bounds of the requests for a provider's list of models.
const (
	requestTimeout = 5 * time.Second
	listTTL        = time.Minute
	failureTTL     = 5 * time.Second // how long a failure is cached
	freshTTL       = 2 * time.Second // a younger list is not requested again
	maxList        = 4 << 20         // bytes
	maxModels      = 1000
	maxID          = 100 // characters, as of a session's model
	maxKnown       = 1024
	maxErrorLen    = 64 << 10
)

// listed is an entry of a provider's own list of models.
type listed struct {
	ID                 string
	Name               string
	Context, MaxOutput int
	Tools              *bool // nil if the list does not say
	Images, Reasoning  bool
}

// listKey identifies a list. The same name may be different providers in two workspaces.
type listKey struct {
	workspace id.Workspace
	provider  string
}

// list is a provider's list of models, or the error of the request for it.
type list struct {
	models []listed
	err    error
	at     time.Time
}

func (l *list) valid(fresh bool) bool {
	age := time.Since(l.at)
	switch {
	case l.err != nil:
		return age < failureTTL
	case fresh:
		return age < freshTTL
	}
	return age < listTTL
}

// listing returns the models that a provider lists itself, at most listTTL old or, with
// fresh, freshTTL. Its errors are shown to people.
func (p *Providers) listing(ctx context.Context, r *credentialv1.Provider, fresh bool) ([]listed, error) {
	actor, err := identity.Require(ctx, identity.Viewer)
	if err != nil {
		return nil, err
	}
	key := listKey{actor.Workspace, r.GetName()}
	p.mu.Lock()
	known, ok := p.lists[key]
	p.mu.Unlock()
	if ok && known.valid(fresh) {
		return known.models, known.err
	}
	known.models, known.err = p.fetchList(ctx, r)
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	known.at = time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.lists) >= maxKnown {
		clear(p.lists)
	}
	p.lists[key] = known
	return known.models, known.err
}

// fetchList requests a provider's list of models through the egress.
func (p *Providers) fetchList(ctx context.Context, r *credentialv1.Provider) ([]listed, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.base(r.GetName())+"/v1/models", nil)
	if err != nil {
		return nil, err
	}
	if req.Header, err = p.sign(ctx); err != nil {
		return nil, err
	}
	if r.GetDialect() == dialectAnthropic {
		req.URL.RawQuery = "limit=1000"
		req.Header.Set("Anthropic-Version", "2023-06-01")
	}
	res, err := p.cfg.HTTP.Do(req)
	if err != nil {
		return nil, fmt.Errorf("it cannot be asked for its models: %w", err)
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode != http.StatusOK {
		body, _ := io.ReadAll(io.LimitReader(res.Body, maxErrorLen)) // the status is error enough
		failure := llm.StatusError(res.StatusCode, res.Header, body)
		return nil, fmt.Errorf("%s (GET /v1/models answers %d)", cmp.Or(failure.Detail, failure.Message), res.StatusCode)
	}
	return readList(res.Body)
}

// readList decodes the response to GET /v1/models of OpenAI and of servers that add fields.
func readList(body io.Reader) ([]listed, error) {
	var answer struct {
		Data []struct {
			ID            string `json:"id"`
			Name          string `json:"name"`
			DisplayName   string `json:"display_name"`
			ContextLength int    `json:"context_length"`
			MaxModelLen   int    `json:"max_model_len"`
			Architecture  struct {
				Input []string `json:"input_modalities"`
			} `json:"architecture"`
			Top struct {
				MaxCompletionTokens int `json:"max_completion_tokens"`
			} `json:"top_provider"`
			Parameters []string `json:"supported_parameters"`
		} `json:"data"`
	}
	b, err := io.ReadAll(io.LimitReader(body, maxList+1))
	if err == nil && len(b) > maxList {
		err = errors.New("it is too long")
	}
	if err == nil {
		err = json.Unmarshal(b, &answer)
	}
	if err != nil {
		return nil, fmt.Errorf("its list of models cannot be read: %w", err)
	}
	var out []listed
	for _, m := range answer.Data {
		if m.ID == "" || len(m.ID) > maxID || strings.ContainsFunc(m.ID+m.Name+m.DisplayName, unprintable) || len(out) == maxModels {
			continue
		}
		l := listed{
			ID: m.ID, Name: clip(m.Name + m.DisplayName), Context: max(m.ContextLength, m.MaxModelLen, 0), MaxOutput: max(m.Top.MaxCompletionTokens, 0),
			Images: slices.Contains(m.Architecture.Input, "image"), Reasoning: slices.Contains(m.Parameters, "reasoning"),
		}
		if m.Parameters != nil {
			l.Tools = new(slices.Contains(m.Parameters, "tools"))
		}
		out = append(out, l)
	}
	return out, nil
}

func unprintable(r rune) bool { return r < ' ' || r == 0x7f }

func clip(name string) string { return string([]rune(name)[:min(len([]rune(name)), maxID)]) }
