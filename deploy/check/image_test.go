package check_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/parser"
	"github.com/moby/patternmatcher"
	"github.com/moby/patternmatcher/ignorefile"
)

func dockerfile(t *testing.T) []instructions.Stage {
	t.Helper()
	f, err := os.Open(filepath.Join(root, "deploy/Dockerfile"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	tree, err := parser.Parse(f)
	if err != nil {
		t.Fatalf("deploy/Dockerfile: %v", err)
	}
	for _, w := range tree.Warnings {
		t.Errorf("deploy/Dockerfile: %s", w.Short)
	}
	stages, _, err := instructions.Parse(tree.AST, nil)
	if err != nil {
		t.Fatalf("deploy/Dockerfile: %v", err)
	}
	return stages
}

// of returns a stage's instructions of one kind, in order.
func of[T instructions.Command](s instructions.Stage) []T {
	var out []T
	for _, c := range s.Commands {
		if c, ok := c.(T); ok {
			out = append(out, c)
		}
	}
	return out
}

func TestImage(t *testing.T) {
	t.Parallel()
	stages := dockerfile(t)
	last := stages[len(stages)-1]
	users := of[*instructions.UserCommand](last)
	if len(users) == 0 || users[len(users)-1].User != "nonroot:nonroot" {
		t.Error("the image does not end as nonroot")
	}
	if len(of[*instructions.RunCommand](last)) > 0 {
		t.Error("the last stage runs commands, which need a shell in the image")
	}
	entry := of[*instructions.EntrypointCommand](last)
	if len(entry) != 1 || entry[0].PrependShell || !slices.Equal(entry[0].CmdLine, []string{"/service"}) {
		t.Errorf("ENTRYPOINT = %v, want the program without a shell, which would keep signals from it", entry)
	}
	health := of[*instructions.HealthCheckCommand](last)
	if len(health) != 1 || !slices.Equal(health[0].Health.Test, []string{"CMD", "/service", "--healthcheck"}) {
		t.Error("the image does not ask the program itself for its health")
	}
	if base := last.BaseName; base != "scratch" && !strings.Contains(base, "distroless/static") {
		t.Errorf("the image is based on %s, want distroless or scratch", base)
	}
}

// TestStages sees what BuildKit's parser does not: that COPY names stages and files
// that exist, and that files are not ignored.
func TestStages(t *testing.T) {
	t.Parallel()
	names := map[string]bool{}
	ignored := ignore(t)
	for _, s := range dockerfile(t) {
		for _, c := range of[*instructions.CopyCommand](s) {
			if c.From != "" {
				if !names[c.From] {
					t.Errorf("COPY --from=%s names no stage above it", c.From)
				}
				continue
			}
			for _, source := range c.SourcePaths {
				if _, err := os.Stat(filepath.Join(root, source)); err != nil {
					t.Errorf("COPY %s: %v", source, err)
				}
				if ignored(source) {
					t.Errorf("COPY %s: .dockerignore leaves it out", source)
				}
			}
		}
		names[s.Name] = true
	}
}

// ignore returns whether the builder leaves a path out.
func ignore(t *testing.T) func(path string) bool {
	t.Helper()
	patterns, err := ignorefile.ReadAll(strings.NewReader(read(t, ".dockerignore")))
	if err != nil {
		t.Fatal(err)
	}
	m, err := patternmatcher.New(patterns)
	if err != nil {
		t.Fatal(err)
	}
	return func(path string) bool {
		out, err := m.MatchesOrParentMatches(path)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
}

func TestIgnore(t *testing.T) {
	t.Parallel()
	ignored := ignore(t)
	for _, path := range []string{
		"go.work", "pkg/id/id.go", "services/gateway/cmd/gateway/main.go",
		"services/document-sync/migrations/00001_documents.sql", "services/tool-executor/internal/tools/doc_read.md",
	} {
		if ignored(path) {
			t.Errorf(".dockerignore leaves %s out, which programs are built from", path)
		}
	}
	for _, path := range []string{
		".git/config", ".env", "deploy/.env", "services/gateway/.env", ".signalbox/identity.json", "bin/gateway", "tools/go.mod",
		"services/console/node_modules/a/b", "services/e2e/node/package.json", "pkg/id/id_test.go",
	} {
		if !ignored(path) {
			t.Errorf(".dockerignore hands %s to the builder", path)
		}
	}
}
