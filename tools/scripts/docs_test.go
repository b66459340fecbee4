package scripts_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	metricName = regexp.MustCompile(`\b(?:signalbox|gateway)_[a-z0-9_]+\b`)
	spans      = regexp.MustCompile("`([^`\n]+)`")
	variable   = regexp.MustCompile(`^[A-Z][A-Z0-9]*_[A-Z0-9_]+$`)
	codePath   = regexp.MustCompile(`^(?:bench|deploy|docs|pkg|proto|services|tools)/[\w./-]+$`)
	words      = regexp.MustCompile(`^[a-z][a-z'-]*(?: [a-z][a-z'-]*){1,11}$`)
	command    = regexp.MustCompile(`^(?:accounts|buf|ctr|docker|helm|make|signalbox) `)
	target     = regexp.MustCompile("(?m)(?:`|^    )make ([a-z][a-z0-9-]*)")
	logFields  = regexp.MustCompile(`(?s)\n## Logs\n.*?\n\| --- .*?\n(\|.*?)\n\n`)
)

// prose returns a page without its code blocks, and with each paragraph on one line.
func prose(page string) string {
	var paragraphs []string
	for p := range strings.SplitSeq(fence.ReplaceAllString(page, ""), "\n\n") {
		paragraphs = append(paragraphs, strings.Join(strings.Fields(p), " "))
	}
	return strings.Join(paragraphs, "\n\n")
}

// messages returns the log messages that a page names: code of several plain words that is
// not a command.
func messages(page string) []string {
	var all []string
	for _, m := range spans.FindAllStringSubmatch(prose(page), -1) {
		if words.MatchString(m[1]) && !command.MatchString(m[1]) {
			all = append(all, m[1])
		}
	}
	return all
}

func TestMessages(t *testing.T) {
	t.Parallel()
	page := "The runner logs `run\n  given up`, or lines `call taken over` and\n`handler panicked`. Use `make run`, `--help`, `run`.\n\n```\n`in code`\n```\n\n- `last one`"
	if got, want := strings.Join(messages(page), ", "), "run given up, call taken over, handler panicked, last one"; got != want {
		t.Errorf("messages are %q, want %q", got, want)
	}
}

// TestNamesInDocuments compares what the documents say with the code: metrics and settings with
// the generated lists, log fields and log messages with the source.
func TestNamesInDocuments(t *testing.T) {
	t.Parallel()
	pages, err := markdown(os.DirFS("../.."))
	if err != nil {
		t.Fatal(err)
	}
	read := func(file string) string {
		text, err := os.ReadFile(filepath.Join("../..", file))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	makefile := read("Makefile")
	metrics, settings, source := read("docs/metrics.md"), read("docs/settings.md")+read("deploy/.env.example"), goSource(t)
	for _, page := range append(pages, "deploy/prometheus/alerts.yaml", "deploy/prometheus/alerts_test.yaml", "deploy/grafana/signalbox.json") {
		text := read(page)
		for _, name := range metricName.FindAllString(text, -1) {
			known := func(name string) bool { return strings.Contains(metrics, "`"+name+"`") }
			histogram := strings.TrimSuffix(strings.TrimSuffix(strings.TrimSuffix(name, "_bucket"), "_sum"), "_count")
			if !known(name) && !known(histogram) && !strings.Contains(source, `"`+name+`"`) {
				t.Errorf("%s names %s, which no service registers", page, name)
			}
		}
		for _, m := range spans.FindAllStringSubmatch(prose(text), -1) {
			name, _, _ := strings.Cut(m[1], "=")
			if variable.MatchString(name) && !strings.Contains(settings, name) && !strings.Contains(source, name) {
				t.Errorf("%s names the variable %s, which nothing reads", page, name)
			}
			if codePath.MatchString(m[1]) {
				if _, err := os.Stat(filepath.Join("../..", m[1])); err != nil {
					t.Errorf("%s names %s, which is not there", page, m[1])
				}
			}
		}
		for _, m := range target.FindAllStringSubmatch(text, -1) {
			if !regexp.MustCompile(`(?m)^(?:[a-z0-9 -]* )?`+m[1]+`[ :]`).MatchString(makefile) && !strings.HasPrefix(m[1], "run-") {
				t.Errorf("%s names the target %s, which the Makefile does not have", page, m[1])
			}
		}
		for _, message := range messages(text) {
			if !strings.Contains(source, `"`+message) {
				t.Errorf("%s names the log message %q, which nothing logs", page, message)
			}
		}
	}
	for _, m := range regexp.MustCompile(`- alert: (\w+)`).FindAllStringSubmatch(read("deploy/prometheus/alerts.yaml"), -1) {
		if !strings.Contains(read("docs/runbook.md"), "\n## "+m[1]+"\n") {
			t.Errorf("docs/runbook.md has no section for the alert %s", m[1])
		}
		if !strings.Contains(read("docs/observe.md"), "\n| `"+m[1]+"` |") {
			t.Errorf("docs/observe.md does not list the alert %s", m[1])
		}
		if tests := read("deploy/prometheus/alerts_test.yaml"); !regexp.MustCompile(`alertname: ` + m[1] + `\n +exp_alerts:`).MatchString(tests) {
			t.Errorf("no test of deploy/prometheus/alerts_test.yaml lets the alert %s fire", m[1])
		}
	}
	table := logFields.FindStringSubmatch(read("docs/observe.md"))
	if table == nil {
		t.Fatal("docs/observe.md has no table of log fields")
	}
	for row := range strings.SplitSeq(table[1], "\n") {
		for _, m := range spans.FindAllStringSubmatch(strings.Split(row, "|")[1], -1) {
			if !strings.Contains(source, `"`+m[1]+`"`) {
				t.Errorf("docs/observe.md names the log field %s, which nothing logs", m[1])
			}
		}
	}
}

// goSource returns all Go of pkg and services that is not a test.
func goSource(t *testing.T) string {
	t.Helper()
	var all strings.Builder
	for _, root := range []string{"../../pkg", "../../services"} {
		err := filepath.WalkDir(root, func(file string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(file, ".go") || strings.HasSuffix(file, "_test.go") {
				return err
			}
			text, err := os.ReadFile(file)
			all.Write(text)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return all.String()
}
