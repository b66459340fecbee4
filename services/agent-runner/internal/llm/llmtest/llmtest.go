// Package llmtest has helpers for tests of package llm's decoders and builders: it formats the
// events of a stream, one per line, and compares them with golden files. go test -update
// rewrites the golden files.
package llmtest

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"signalbox.dev/services/agent-runner/internal/llm"
	"signalbox.dev/services/agent-runner/internal/llm/jscan"
	"signalbox.dev/services/agent-runner/internal/modelmsg"
)

var update = flag.Bool("update", false, "rewrite golden files")

// Run reads body to its end and returns a line for every event, then the error or the response.
// If the stream ended early, the partial response follows.
func Run(body io.Reader, dec llm.Decoder, limits llm.Limits) string {
	s := llm.NewStream(body, dec, limits)
	defer s.Close()
	var b strings.Builder
	for s.Next() {
		writeEvent(&b, s.Event())
	}
	resp := s.Response()
	if err := s.Err(); err != nil {
		e, _ := errors.AsType[*llm.Error](err)
		if e == nil {
			e = &llm.Error{Message: err.Error()}
		}
		fmt.Fprintf(&b, "error %s type=%q code=%q retryable=%v %q\n", e.Kind, e.Type, e.Code, e.Retryable, e.Message)
		resp = s.Partial()
		b.WriteString("partial\n")
	}
	writeResponse(&b, resp)
	return b.String()
}

// Cites checks which URLs the events cite, in what Run has returned.
func Cites(t *testing.T, got string, want ...string) {
	t.Helper()
	var urls []string
	for line := range strings.Lines(got) {
		if f := strings.Fields(line); len(f) > 2 && f[0] == llm.Citation.String() {
			urls = append(urls, f[2])
		}
	}
	if diff := cmp.Diff(want, urls); diff != "" {
		t.Errorf("citations (-want +got):\n%s", diff)
	}
}

func writeEvent(b *strings.Builder, ev *llm.Event) {
	fmt.Fprintf(b, "%s", ev.Type)
	switch ev.Type {
	case llm.Source:
		fmt.Fprintf(b, " %s %q", ev.URL, ev.Title)
	case llm.Citation:
		fmt.Fprintf(b, " %d %s end=%d", ev.Index, ev.URL, ev.End)
	case llm.UsageUpdate:
		fmt.Fprintf(b, " %+v", *ev.Usage)
	default:
		fmt.Fprintf(b, " %d", ev.Index)
	}
	if ev.ID != "" {
		fmt.Fprintf(b, " id=%s name=%s", ev.ID, ev.Name)
	}
	if ev.Args != nil {
		fmt.Fprintf(b, " args=%s", ev.Args)
	}
	if ev.Text != nil {
		fmt.Fprintf(b, " %q", ev.Text)
	}
	if ev.Invalid || ev.IsError {
		fmt.Fprintf(b, " invalid=%v error=%v", ev.Invalid, ev.IsError)
	}
	b.WriteByte('\n')
}

func writeResponse(b *strings.Builder, r *llm.Response) {
	fmt.Fprintf(b, "id %q model %q finish %s (%s) paused=%v\n", r.ID, r.Model, r.Finish, r.RawFinish, r.Paused)
	fmt.Fprintf(b, "usage %+v raw %s\n", r.Usage, r.RawUsage)
	for _, c := range r.ToolCalls {
		fmt.Fprintf(b, "call %s %s %s invalid=%v %q\n", c.ID, c.Name, c.Args, c.Invalid, c.RawArgs)
	}
	fmt.Fprintf(b, "content %s\n", r.Content)
	fmt.Fprintf(b, "raw %s %s\n", r.Raw.Dialect, r.Raw.Blocks)
}

// Check checks invariants of a response: content and raw blocks are JSON, and content is a
// ModelMessage's.
func Check(r *llm.Response) error {
	if err := ValidContent("assistant", r.Content); err != nil {
		return fmt.Errorf("content %s: %w", r.Content, err)
	}
	if !json.Valid(r.Content) {
		return fmt.Errorf("content %q is not JSON", r.Content)
	}
	if len(r.Raw.Blocks) > 0 && !json.Valid(r.Raw.Blocks) {
		return fmt.Errorf("raw blocks %q are not JSON", r.Raw.Blocks)
	}
	for _, c := range r.ToolCalls {
		var v map[string]any
		if err := json.Unmarshal(c.Args, &v); c.ID == "" || c.Name == "" || err != nil && !strings.Contains(err.Error(), "cannot unmarshal number") {
			return fmt.Errorf("call %+v: %w", c, err)
		}
	}
	return nil
}

// Golden compares got with the golden file at path, or rewrites it with -update.
func Golden(t *testing.T, path string, got []byte) {
	t.Helper()
	if *update {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("%s differs (-want +got), -update rewrites it:\n%s", path, diff)
	}
}

// Streams returns the recorded streams in dir, by name.
func Streams(t testing.TB, dir string) map[string][]byte {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(dir, "*.sse"))
	if err != nil || len(paths) == 0 {
		t.Fatalf("no streams in %s: %v", dir, err)
	}
	streams := make(map[string][]byte, len(paths))
	for _, p := range paths {
		data, err := os.ReadFile(p)
		if err != nil {
			t.Fatal(err)
		}
		streams[strings.TrimSuffix(filepath.Base(p), ".sse")] = data
	}
	return streams
}

// Splits checks that a stream gives the same result however it is split into two reads, with
// every kind of line end, and with comments in between.
func Splits(t *testing.T, stream []byte, dec func() llm.Decoder) {
	t.Helper()
	want := Run(bytes.NewReader(stream), dec(), llm.Limits{})
	same := func(what string, body io.Reader) {
		t.Helper()
		if got := Run(body, dec(), llm.Limits{}); got != want {
			t.Errorf("%s gives something else (-want +got):\n%s", what, cmp.Diff(want, got))
		}
	}
	for i := range len(stream) + 1 {
		same(fmt.Sprintf("a cut at %d", i), io.MultiReader(bytes.NewReader(stream[:i]), bytes.NewReader(stream[i:])))
		if t.Failed() {
			return
		}
	}
	same("CRLF", bytes.NewReader(bytes.ReplaceAll(stream, []byte("\n"), []byte("\r\n"))))
	same("CR", bytes.NewReader(bytes.ReplaceAll(stream, []byte("\n"), []byte("\r"))))
	same("comments", bytes.NewReader(bytes.ReplaceAll(stream, []byte("\n\n"), []byte("\n: comment\n\n:\n"))))
}

// CheckEvent checks invariants of an event.
func CheckEvent(ev *llm.Event) error {
	switch {
	case !utf8.Valid(ev.Text) || bytes.IndexByte(ev.Text, 0) >= 0:
		return fmt.Errorf("event %s has text that cannot be stored: %q", ev.Type, ev.Text)
	case ev.Args != nil && (!json.Valid(ev.Args) || bytes.ContainsAny(ev.Args, "\r\n")):
		return fmt.Errorf("event %s has arguments that are not one line of JSON: %q", ev.Type, ev.Args)
	}
	return nil
}

// CheckBuild checks that a request can be built and is JSON.
func CheckBuild(t *testing.T, req *llm.Request, build func(*llm.Request) ([]byte, error)) {
	t.Helper()
	body, err := build(req)
	if err != nil {
		t.Fatalf("Build: %v", err)
	}
	if !json.Valid(body) {
		t.Fatalf("Build = %q, not JSON", body)
	}
}

// ValidContent returns an error if content is not valid for a role (user, system, assistant or
// tool).
func ValidContent(role string, content json.RawMessage) error {
	parts, err := modelmsg.Parse(content)
	if err != nil {
		return err
	}
	if jscan.KindOf(content) == jscan.String {
		if role == "tool" {
			return fmt.Errorf("the content of a tool message is an array")
		}
		return nil
	}
	for i := range parts {
		if !allowed(role, parts[i].Type) {
			return fmt.Errorf("content[%d]: a %s message has no %q part", i, role, parts[i].Type)
		}
	}
	return nil
}

func allowed(role, part string) bool {
	switch role {
	case "user":
		return part == modelmsg.Text || part == modelmsg.File
	case "assistant":
		switch part {
		case modelmsg.Text, modelmsg.Reasoning, modelmsg.File, modelmsg.ToolCall, modelmsg.ToolResult, "tool-approval-request":
			return true
		}
	case "tool":
		return part == modelmsg.ToolResult || part == "tool-approval-response"
	}
	return false
}
