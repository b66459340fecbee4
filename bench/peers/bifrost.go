package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/bytedance/sonic"
	bifrost "github.com/maximhq/bifrost/core"
	"github.com/maximhq/bifrost/core/providers/anthropic"
	"github.com/maximhq/bifrost/core/schemas"
)

// account is the keys of one provider, as Bifrost asks for them.
type account struct{ base string }

// GetConfiguredProviders implements schemas.Account.
func (account) GetConfiguredProviders() ([]schemas.ModelProvider, error) {
	return []schemas.ModelProvider{schemas.Anthropic}, nil
}

// GetKeysForProvider implements schemas.Account: as many as the egress chooses from.
func (account) GetKeysForProvider(context.Context, schemas.ModelProvider) ([]schemas.Key, error) {
	keys := make([]schemas.Key, accounts)
	for i := range keys {
		name := fmt.Sprint("key-", i)
		keys[i] = schemas.Key{ID: name, Name: name, Value: *schemas.NewEnvVar(secret), Models: schemas.WhiteList{"*"}, Weight: 1}
	}
	return keys, nil
}

// GetConfigForProvider implements schemas.Account. All but the base URL is Bifrost's default.
func (a account) GetConfigForProvider(schemas.ModelProvider) (*schemas.ProviderConfig, error) {
	c := &schemas.ProviderConfig{NetworkConfig: schemas.NetworkConfig{BaseURL: a.base}}
	c.CheckAndSetDefaults()
	return c, nil
}

// gateway is Bifrost's core behind net/http.
type gateway struct{ core *bifrost.Bifrost }

// serveBifrost is the program "bifrost <base URL of the provider>".
func serveBifrost(ctx context.Context, args []string, in io.Reader, out io.Writer) error {
	if len(args) != 1 {
		return errors.New("bifrost needs the provider's base URL")
	}
	h, stop, err := bifrostHandler(ctx, args[0])
	if err != nil {
		return err
	}
	defer stop()
	return serve(ctx, in, out, h)
}

// bifrostHandler starts Bifrost.
func bifrostHandler(ctx context.Context, base string) (h http.Handler, stop func(), err error) {
	core, err := bifrost.Init(ctx, schemas.BifrostConfig{
		Account: account{base}, Logger: bifrost.NewDefaultLogger(schemas.LogLevelError), InitialPoolSize: schemas.DefaultInitialPoolSize,
	})
	if err != nil {
		return nil, nil, fmt.Errorf("start Bifrost: %w", err)
	}
	g := gateway{core}
	mux := http.NewServeMux()
	mux.HandleFunc("POST "+messagesPath, g.messages)
	mux.HandleFunc("POST /passthrough"+messagesPath, g.passthrough)
	return mux, core.Shutdown, nil
}

const maxBody = 32 << 20

// messages takes a request in Anthropic's dialect and gives an answer back in it: request
// and events go through Bifrost's own schema, as they do for every provider.
func (g gateway) messages(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	var req anthropic.AnthropicMessageRequest
	if err := sonic.Unmarshal(body, &req); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	ctx, cancel := schemas.NewBifrostContextWithCancel(r.Context())
	defer cancel()
	stream, failed := g.core.ResponsesStreamRequest(ctx, req.ToBifrostResponsesRequest(ctx))
	if failed != nil {
		refuse(w, failed)
		return
	}
	rc := http.NewResponseController(w)
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-cache")
	var b []byte
	for c := range stream {
		if c.BifrostResponsesStreamResponse == nil {
			panic(http.ErrAbortHandler) // the stream broke
		}
		b = b[:0]
		for _, ev := range anthropic.ToAnthropicResponsesStreamResponse(ctx, c.BifrostResponsesStreamResponse) {
			data, err := sonic.Marshal(ev)
			if err != nil {
				panic(http.ErrAbortHandler)
			}
			b = append(append(append(b, "event: "...), ev.Type...), "\ndata: "...)
			b = append(append(b, data...), "\n\n"...)
		}
		if len(b) > 0 && !send(w, rc, b) {
			return
		}
	}
}

// passthrough has Bifrost forward bytes as they are: the least that it does.
func (g gateway) passthrough(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	ctx, cancel := schemas.NewBifrostContextWithCancel(r.Context())
	defer cancel()
	stream, failed := g.core.PassthroughStream(ctx, schemas.Anthropic, &schemas.BifrostPassthroughRequest{
		Method: http.MethodPost, Path: messagesPath, Body: body, SafeHeaders: map[string]string{"Content-Type": "application/json"},
	})
	if failed != nil {
		refuse(w, failed)
		return
	}
	rc := http.NewResponseController(w)
	w.Header().Set("Content-Type", "text/event-stream")
	for c := range stream {
		if c.BifrostPassthroughResponse == nil {
			panic(http.ErrAbortHandler)
		}
		if !send(w, rc, c.Body) {
			return
		}
	}
}

func send(w io.Writer, rc *http.ResponseController, b []byte) bool {
	if _, err := w.Write(b); err != nil {
		return false
	}
	return rc.Flush() == nil
}

func refuse(w http.ResponseWriter, failed *schemas.BifrostError) {
	status, message := http.StatusBadGateway, "Bifrost failed"
	if failed.StatusCode != nil {
		status = *failed.StatusCode
	}
	if failed.Error != nil {
		message = failed.Error.Message
	}
	http.Error(w, message, status)
}
