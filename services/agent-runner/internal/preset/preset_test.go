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
