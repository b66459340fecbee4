package gateway_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "rewrite golden files")

func TestOpenAPI(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.gateway(t)
	got := in.send(t, in.request(t, person{}, "GET", "/openapi.json", "", nil))
	if got.status != http.StatusOK || got.header.Get("Content-Type") != "application/json" {
		t.Fatalf("/openapi.json = %d %v", got.status, got.header)
	}
	var doc map[string]any
	if err := json.Unmarshal([]byte(got.body), &doc); err != nil {
		t.Fatal(err)
	}
	if doc["openapi"] != "3.1.0" {
		t.Errorf("openapi = %v, want 3.1.0", doc["openapi"])
	}
	checkRefs(t, doc, doc)
	for path, want := range map[string]any{
		// An empty history is of both forms, and a call that has not ended has no state.
		"components schemas SessionDetails properties messages anyOf 1 type": "array",
		"components schemas ToolCall properties state enum 4":                nil,
		"paths /api/workspaces post responses 403 description":               "The operation is not for API keys.",
		"components schemas UpdateSession properties tools type 1":           "null",
	} {
		if got, ok := lookUp(doc, path); !ok || got != want {
			t.Errorf("%s = %v (%t), want %v", path, got, ok, want)
		}
	}
	checkOperations(t, doc)
	if info, ok := doc["info"].(map[string]any); ok {
		info["version"] = "golden"
	}
	var text bytes.Buffer
	enc := json.NewEncoder(&text)
	enc.SetIndent("", " ")
	enc.SetEscapeHTML(false)
	if err := enc.Encode(doc); err != nil {
		t.Fatal(err)
	}
	golden := filepath.Join("testdata", "openapi.json")
	if *update {
		if err := os.WriteFile(golden, text.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(text.String(), "\n")); diff != "" {
		t.Errorf("the public API changed; run the test with -update if that is meant (-want +got):\n%s", diff)
	}
}

// checkOperations fails for an operation without security or with an undocumented tag, and for a
// request field that has a default, because generated clients would require it.
func checkOperations(t *testing.T, doc map[string]any) {
	t.Helper()
	for path, want := range map[string]any{"servers 0 url": "/", "info license identifier": "Apache-2.0"} {
		if got, _ := lookUp(doc, path); got != want {
			t.Errorf("%s = %v, want %v", path, got, want)
		}
	}
	named := map[any]bool{}
	for _, tag := range doc["tags"].([]any) {
		named[tag.(map[string]any)["name"]] = true
	}
	schemas, _ := lookUp(doc, "components schemas")
	for path, item := range doc["paths"].(map[string]any) {
		for method, op := range item.(map[string]any) {
			op := op.(map[string]any)
			if security, _ := op["security"].([]any); len(security) == 0 {
				t.Errorf("%s %s does not say who may ask", method, path)
			}
			if tags, _ := op["tags"].([]any); len(tags) != 1 || !named[tags[0]] {
				t.Errorf("%s %s has the tags %v", method, path, tags)
			}
			ref, _ := lookUp(op, "requestBody content application/json schema $ref")
			if ref == nil {
				continue
			}
			body, _ := schemas.(map[string]any)[filepath.Base(ref.(string))].(map[string]any)
			fields, _ := body["properties"].(map[string]any)
			for name, field := range fields {
				if absent, ok := field.(map[string]any)["default"]; ok {
					t.Errorf("%s of %s has the default %v, with which clients must send it", name, ref, absent)
				}
			}
		}
	}
}

// lookUp returns the value at a path of names and indexes.
func lookUp(v any, path string) (any, bool) {
	for step := range strings.FieldsSeq(path) {
		switch at := v.(type) {
		case map[string]any:
			v = at[step]
			if _, ok := at[step]; !ok {
				return nil, false
			}
		case []any:
			i, err := strconv.Atoi(step)
			if err != nil || i >= len(at) {
				return nil, false
			}
			v = at[i]
		default:
			return nil, false
		}
	}
	return v, true
}

// checkRefs fails for a dangling reference, and for an operation without an id or without the
// documented errors.
func checkRefs(t *testing.T, doc map[string]any, v any) {
	t.Helper()
	switch v := v.(type) {
	case map[string]any:
		if ref, ok := v["$ref"].(string); ok {
			var at any = doc
			for step := range strings.SplitSeq(strings.TrimPrefix(ref, "#/"), "/") {
				m, _ := at.(map[string]any)
				at = m[step]
			}
			if at == nil {
				t.Errorf("reference to nowhere: %s", ref)
			}
		}
		if responses, ok := v["responses"].(map[string]any); ok {
			refusal := "401"
			if responses["303"] != nil {
				refusal = "403" // a page for browsers without a token
			}
			if v["operationId"] == "watch-shared-document" {
				refusal = "404" // it does not tell whether the link exists
			}
			begins := responses["303"] != nil && responses["404"] != nil // a page that takes any parameter, and sends the browser away
			if v["operationId"] == nil || !begins && (responses["400"] == nil || responses[refusal] == nil) || responses["422"] != nil || responses["default"] != nil {
				t.Errorf("operation %v has the responses %v", v["operationId"], responses)
			}
		}
		for _, sub := range v {
			checkRefs(t, doc, sub)
		}
	case []any:
		for _, sub := range v {
			checkRefs(t, doc, sub)
		}
	}
}
