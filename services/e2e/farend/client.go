package farend

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
)

// Client calls a far end for tools. Any error of its methods except
// Find leaves open whether the request took effect.
type Client struct {
	url  string
	http *http.Client
}

// NewClient returns a client of the far end at a base URL.
func NewClient(base string, h *http.Client) *Client {
	return &Client{strings.TrimSuffix(base, "/"), h}
}

// Latency is the latency that a request sets; nil means the far end's default.
type Latency struct {
	BeforeMS *int `json:"before_ms,omitempty"`
	AfterMS  *int `json:"after_ms,omitempty"`
}

// Read sends a request without an effect.
func (c *Client) Read(ctx context.Context, operation string) (Effect, error) {
	e, _, err := c.do(ctx, http.MethodGet, "/pure?operation="+url.QueryEscape(operation), nil)
	return e, err
}

// Keyed sends a request that takes effect once for each key.
func (c *Client) Keyed(ctx context.Context, operation, key string, l Latency) (Effect, error) {
	return c.post(ctx, "/keyed", struct {
		Operation string `json:"operation"`
		Key       string `json:"key"`
		Latency
	}{operation, key, l})
}

// Marked sends a request whose effect has a marker for Find.
func (c *Client) Marked(ctx context.Context, operation, marker string, l Latency) (Effect, error) {
	return c.post(ctx, "/marked", struct {
		Operation string `json:"operation"`
		Marker    string `json:"marker"`
		Latency
	}{operation, marker, l})
}

// Blind sends a request whose effect cannot be looked up.
func (c *Client) Blind(ctx context.Context, operation string, l Latency) (Effect, error) {
	return c.post(ctx, "/blind", struct {
		Operation string `json:"operation"`
		Latency
	}{operation, l})
}

// Find looks for an effect by its marker.
func (c *Client) Find(ctx context.Context, marker string) (e Effect, found bool, err error) {
	e, status, err := c.do(ctx, http.MethodGet, "/marked?marker="+url.QueryEscape(marker), nil)
	if status == http.StatusNotFound {
		return Effect{}, false, nil
	}
	return e, err == nil, err
}

// Set sets the default latencies of requests.
func (c *Client) Set(ctx context.Context, to Settings) error {
	b, err := json.Marshal(to)
	if err != nil {
		return err
	}
	_, _, err = c.do(ctx, http.MethodPut, "/settings", b)
	return err
}

// Report returns the requests and effects so far.
func (c *Client) Report(ctx context.Context) (Report, error) {
	var out Report
	_, err := c.call(ctx, http.MethodGet, "/report", nil, &out)
	return out, err
}

func (c *Client) post(ctx context.Context, path string, body any) (Effect, error) {
	b, err := json.Marshal(body)
	if err != nil {
		return Effect{}, err
	}
	e, _, err := c.do(ctx, http.MethodPost, path, b)
	return e, err
}

func (c *Client) do(ctx context.Context, method, path string, body []byte) (e Effect, status int, err error) {
	status, err = c.call(ctx, method, path, body, &e)
	return e, status, err
}

// maxReport bounds a response.
const maxReport = 256 << 20

func (c *Client) call(ctx context.Context, method, path string, body []byte, into any) (status int, err error) {
	req, err := http.NewRequestWithContext(ctx, method, c.url+path, bytes.NewReader(body))
	if err != nil {
		return 0, err
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	res, err := c.http.Do(req)
	if err != nil {
		return 0, fmt.Errorf("call the far end: %w", err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		_, _ = io.Copy(io.Discard, io.LimitReader(res.Body, maxBody)) // so that the connection is reused
		return res.StatusCode, fmt.Errorf("%s %s returned %s", method, path, res.Status)
	}
	if err := json.NewDecoder(io.LimitReader(res.Body, maxReport)).Decode(into); err != nil {
		return res.StatusCode, fmt.Errorf("read the response to %s %s: %w", method, path, err)
	}
	return res.StatusCode, nil
}
