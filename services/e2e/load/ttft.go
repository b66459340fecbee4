package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"signalbox.dev/pkg/sse"
	"signalbox.dev/services/e2e/world"
)

// quick responds at once.
const quick = `
rules:
  - then:
      - say: "one two three four five six seven"
`

// ttft measures the time from POST to the first delta at the client, and alternately that of the
// provider alone. Each message has a new session, so that the provider's requests are equally long.
func ttft(ctx context.Context, b *bench) error {
	w, err := b.world(ctx, world.Options{Replicas: 1})
	if err != nil {
		return err
	}
	defer quietly(w.Close)
	if err := w.PutScript(ctx, "quick", quick); err != nil {
		return err
	}
	owner, err := w.NewMember(ctx, "", "owner")
	if err != nil {
		return err
	}
	client := w.Client(0, owner)
	var ours, theirs sample
	for i := range b.times(1000) + warmUp {
		session, err := client.NewSession(ctx, "sim/quick")
		if err != nil {
			return err
		}
		direct, err := askProvider(ctx, w)
		if err != nil {
			return err
		}
		through, err := ask(ctx, client, session)
		if err != nil {
			return err
		}
		if i >= warmUp {
			ours, theirs = append(ours, through), append(theirs, direct)
		}
	}
	for _, q := range []struct {
		name string
		at   float64
	}{{"p50", 0.5}, {"p99", 0.99}} {
		b.figure("time to first token, "+q.name, milliseconds(ours.quantile(q.at)), "ms")
		b.figure("the provider's own, "+q.name, milliseconds(theirs.quantile(q.at)), "ms")
		b.figure("added, "+q.name, milliseconds(ours.quantile(q.at)-theirs.quantile(q.at)), "ms")
	}
	return nil
}

const warmUp = 50

// ask sends a message and returns the time to the first delta; it reads to the end.
func ask(ctx context.Context, c world.Client, session string) (first time.Duration, err error) {
	begin := time.Now()
	stream, err := c.Send(ctx, session, world.Sending{Content: "hello"})
	if err != nil {
		return 0, err
	}
	defer quietly(stream.Close)
	for {
		e, err := stream.Next()
		if err != nil {
			if first > 0 {
				return first, nil
			}
			return 0, fmt.Errorf("no delta arrived: %w", err)
		}
		switch e.Type {
		case "text-delta":
			if first == 0 {
				first = time.Since(begin)
			}
		case "error":
			return 0, fmt.Errorf("the run failed: %s", e.Data)
		}
	}
}

// askProvider sends a runner's request directly to the provider.
func askProvider(ctx context.Context, w *world.World) (first time.Duration, err error) {
	body, err := json.Marshal(map[string]any{
		"model": "sim/quick", "max_tokens": 1000, "stream": true, "messages": []any{map[string]any{"role": "user", "content": "hello"}},
	})
	if err != nil {
		return 0, err
	}
	begin := time.Now()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, w.Simulator+"/anthropic/v1/messages", bytes.NewReader(body))
	if err != nil {
		return 0, err
	}
	req.Header.Set("X-Api-Key", "any")
	req.Header.Set("Anthropic-Version", "2023-06-01")
	req.Header.Set("Content-Type", "application/json")
	res, err := w.HTTP.Do(req)
	if err != nil {
		return 0, err
	}
	defer res.Body.Close()
	r := sse.NewReader(res.Body, 1<<20)
	for {
		e, err := r.Next()
		if err != nil {
			if first > 0 {
				return first, nil
			}
			return 0, errors.Join(fmt.Errorf("the provider returned %s", res.Status), err)
		}
		if first == 0 && strings.HasPrefix(e.Type, "content_block_delta") {
			first = time.Since(begin)
		}
	}
}
