// Command call makes one call of a model provider with its official Go SDK. The call
// is read from stdin as JSON and what came of it goes to stdout as JSON; both look as
// they do for the npm SDKs (services/e2e/node/call-provider.mjs). The end-to-end tests
// of the egress (services/e2e/egress) build and run it: the SDKs stay in this module.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/anthropics/anthropic-sdk-go"
	anthropicoption "github.com/anthropics/anthropic-sdk-go/option"
	"github.com/openai/openai-go/v3"
	openaioption "github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/responses"
)

type job struct {
	SDK     string
	URL     string
	Key     string
	Method  string
	Body    json.RawMessage
	Headers map[string]string
}

type result struct {
	Events []json.RawMessage `json:"events"`
	Value  json.RawMessage   `json:"value"`
	Error  *failure          `json:"error"`
	Wire   *wire             `json:"wire"`
}

type failure struct {
	Status     int    `json:"status"`
	Message    string `json:"message"`
	RequestID  string `json:"requestId"`
	RetryAfter string `json:"retryAfter"`
}

type wire struct {
	Status  int               `json:"status"`
	Headers map[string]string `json:"headers"`
	Body    []byte            `json:"body"` // as base64
}

// RoundTrip implements http.RoundTripper. It keeps what it passes on.
func (w *wire) RoundTrip(req *http.Request) (*http.Response, error) {
	res, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	w.Status, w.Headers, w.Body = res.StatusCode, map[string]string{}, nil
	for name, values := range res.Header {
		w.Headers[strings.ToLower(name)] = strings.Join(values, ", ")
	}
	res.Body = struct {
		io.Reader
		io.Closer
	}{io.TeeReader(res.Body, keeper{w}), res.Body}
	return res, nil
}

type keeper struct{ w *wire }

// Write implements io.Writer.
func (k keeper) Write(p []byte) (int, error) {
	k.w.Body = append(k.w.Body, p...)
	return len(p), nil
}

func main() {
	if err := run(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(in io.Reader, out io.Writer) error {
	var j job
	if err := json.NewDecoder(in).Decode(&j); err != nil {
		return fmt.Errorf("read the call: %w", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	r := result{Events: []json.RawMessage{}, Wire: &wire{}}
	var err error
	switch j.SDK {
	case "anthropic":
		err = callAnthropic(ctx, j, &r)
	case "openai":
		err = callOpenAI(ctx, j, &r)
	default:
		return fmt.Errorf("sdk is anthropic or openai, not %s", j.SDK)
	}
	if err != nil {
		r.Error = describe(err)
	}
	return json.NewEncoder(out).Encode(r)
}

func callAnthropic(ctx context.Context, j job, r *result) error {
	options := []anthropicoption.RequestOption{
		anthropicoption.WithBaseURL(j.URL), anthropicoption.WithAPIKey(j.Key), anthropicoption.WithMaxRetries(0),
		anthropicoption.WithHTTPClient(&http.Client{Transport: r.Wire}),
	}
	for name, value := range j.Headers {
		options = append(options, anthropicoption.WithHeader(name, value))
	}
	client := anthropic.NewClient(options...)
	switch j.Method {
	case "stream":
		stream := client.Messages.NewStreaming(ctx, anthropic.MessageNewParams{}, anthropicoption.WithRequestBody("application/json", streamed(j.Body)))
		defer func() { _ = stream.Close() }() // it was read to its end
		for stream.Next() {
			r.Events = append(r.Events, json.RawMessage(stream.Current().RawJSON()))
		}
		return stream.Err()
	case "create":
		m, err := client.Messages.New(ctx, anthropic.MessageNewParams{}, anthropicoption.WithRequestBody("application/json", []byte(j.Body)))
		if err == nil {
			r.Value = json.RawMessage(m.RawJSON())
		}
		return err
	case "count":
		m, err := client.Messages.CountTokens(ctx, anthropic.MessageCountTokensParams{}, anthropicoption.WithRequestBody("application/json", []byte(j.Body)))
		if err == nil {
			r.Value = json.RawMessage(m.RawJSON())
		}
		return err
	case "models":
		page, err := client.Models.List(ctx, anthropic.ModelListParams{})
		if err == nil {
			r.Value = json.RawMessage(page.RawJSON())
		}
		return err
	}
	return fmt.Errorf("there is no method %s", j.Method)
}

func callOpenAI(ctx context.Context, j job, r *result) error {
	options := []openaioption.RequestOption{
		openaioption.WithBaseURL(j.URL), openaioption.WithAPIKey(j.Key), openaioption.WithMaxRetries(0),
		openaioption.WithHTTPClient(&http.Client{Transport: r.Wire}),
	}
	for name, value := range j.Headers {
		options = append(options, openaioption.WithHeader(name, value))
	}
	client := openai.NewClient(options...)
	switch j.Method {
	case "stream":
		stream := client.Chat.Completions.NewStreaming(ctx, openai.ChatCompletionNewParams{}, openaioption.WithRequestBody("application/json", streamed(j.Body)))
		defer func() { _ = stream.Close() }() // it was read to its end
		for stream.Next() {
			event := stream.Current()
			r.Events = append(r.Events, json.RawMessage(event.RawJSON()))
		}
		return stream.Err()
	case "create":
		c, err := client.Chat.Completions.New(ctx, openai.ChatCompletionNewParams{}, openaioption.WithRequestBody("application/json", []byte(j.Body)))
		if err == nil {
			r.Value = json.RawMessage(c.RawJSON())
		}
		return err
	case "respond":
		stream := client.Responses.NewStreaming(ctx, responses.ResponseNewParams{}, openaioption.WithRequestBody("application/json", streamed(j.Body)))
		defer func() { _ = stream.Close() }() // it was read to its end
		for stream.Next() {
			event := stream.Current()
			r.Events = append(r.Events, json.RawMessage(event.RawJSON()))
			if event.Type == "response.completed" {
				r.Value, _ = json.Marshal(event.Response.OutputText()) //nolint:errchkjson // a text
			}
		}
		return stream.Err()
	case "models":
		page, err := client.Models.List(ctx)
		if err == nil {
			r.Value = json.RawMessage(page.RawJSON())
		}
		return err
	}
	return fmt.Errorf("there is no method %s", j.Method)
}

// streamed returns a request's body that asks for a stream.
func streamed(body []byte) []byte {
	return append([]byte(`{"stream":true,`), bytes.TrimLeft(bytes.TrimSpace(body), "{")...)
}

func describe(err error) *failure {
	f := &failure{Message: err.Error()}
	if e, ok := errors.AsType[*anthropic.Error](err); ok {
		f.Status, f.Message, f.RequestID = e.StatusCode, e.RawJSON(), e.RequestID
		f.RetryAfter = e.Response.Header.Get("Retry-After")
	}
	if e, ok := errors.AsType[*openai.Error](err); ok {
		f.Status, f.Message = e.StatusCode, e.RawJSON()
		f.RetryAfter = e.Response.Header.Get("Retry-After")
	}
	return f
}
