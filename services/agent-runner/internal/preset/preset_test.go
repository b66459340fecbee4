package preset_test

import (
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"

	"signalbox.dev/services/agent-runner/internal/preset"
)

func TestBuiltin(t *testing.T) {
	t.Parallel()
	set, err := preset.Builtin()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"assistant", "browser", "explorer", "workspace"}, set.Names()); diff != "" {
		t.Error(diff)
	}
	p, err := set.Get("")
	if err != nil || p.Name != preset.Default || p.MaxSteps != 20 || !p.Enables("doc_edit") || p.Enables("web_search") {
		t.Errorf("Get(\"\") = %+v, %v", p, err)
	}
	if _, err := set.Get("nope"); err == nil || !strings.Contains(err.Error(), "workspace") {
		t.Errorf("Get(nope) = %v, want an error that names what there is", err)
	}
}

func TestLoadRefuses(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"unknown field": "name: workspace\nmax_steps: 1\ncolour: red\n",
		"name":          "name: other\nmax_steps: 1\n",
		"steps":         "name: workspace\nmax_steps: 51\n",
		"tokens":        "name: workspace\nmax_steps: 1\nmax_output_tokens: -1\n",
		"no default":    "",
	} {
		dir := fstest.MapFS{}
		if text != "" {
			dir["workspace.yaml"] = &fstest.MapFile{Data: []byte(text)}
		}
		if _, err := preset.Load(dir); err == nil || text != "" && !strings.Contains(err.Error(), "workspace.yaml") {
			t.Errorf("%s: Load = %v, want an error that names the file", name, err)
		}
	}
}

func TestSelection(t *testing.T) {
	t.Parallel()
	own := []string{"doc_*", "web_search"}
	for _, tt := range []struct {
		selection []string
		want      []string
	}{
		{nil, []string{"doc_read", "web_search"}},
		{[]string{}, nil},
		{[]string{"mcp__wiki__*"}, []string{"mcp__wiki__find", "mcp__wiki__write"}},
		{[]string{"*", "-mcp__wiki__*"}, []string{"doc_read", "mcp__wiki2__find", "web_search"}},
		{[]string{"-mcp__wiki__write", "mcp__wiki__*"}, []string{"mcp__wiki__find"}},
		{[]string{"-web_search"}, []string{"doc_read"}},
		{[]string{"-*"}, nil},
	} {
		var got []string
		for _, name := range []string{"doc_read", "mcp__wiki2__find", "mcp__wiki__find", "mcp__wiki__write", "web_search"} {
			if preset.Includes(preset.Resolve(tt.selection, own), name) {
				got = append(got, name)
			}
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%q (-want +got):\n%s", tt.selection, diff)
		}
	}
	if diff := cmp.Diff([]string{"doc_*", "web_search"}, own); diff != "" {
		t.Errorf("the preset's own selection has changed (-want +got):\n%s", diff)
	}
}
