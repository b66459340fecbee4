package scripts_test

import (
	"fmt"
	"io/fs"
	"os"
	"path"
	"regexp"
	"strings"
	"testing"
	"testing/fstest"
)

var (
	fence   = regexp.MustCompile("(?ms)^ *```.*?^ *```")
	code    = regexp.MustCompile("`[^`\n]*`")
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading = regexp.MustCompile(`(?m)^#+ +(.+?) *$`)
	notWord = regexp.MustCompile(`[^\p{L}\p{N}_ -]`)
)

// anchors returns the anchors of a page's headings, as GitHub generates them.
func anchors(page string) map[string]bool {
	found := map[string]bool{}
	for _, m := range heading.FindAllStringSubmatch(fence.ReplaceAllString(page, ""), -1) {
		name := strings.ReplaceAll(notWord.ReplaceAllString(strings.ToLower(m[1]), ""), " ", "-")
		base := name
		for n := 1; found[name]; n++ {
			name = fmt.Sprintf("%s-%d", base, n)
		}
		found[name] = true
	}
	return found
}

// markdown returns the paths of a tree's Markdown files.
func markdown(tree fs.FS) ([]string, error) {
	var files []string
	err := fs.WalkDir(tree, ".", func(file string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "node_modules" || d.Name() == "testdata" || d.Name() == "bin" || file != "." && strings.HasPrefix(d.Name(), ".") && d.Name() != ".github"):
			return fs.SkipDir
		case !d.IsDir() && path.Ext(file) == ".md":
			files = append(files, file)
		}
		return nil
	})
	return files, err
}

// deadLinks returns the broken relative links in a tree's Markdown files.
func deadLinks(tree fs.FS) ([]string, error) {
	files, err := markdown(tree)
	if err != nil {
		return nil, err
	}
	var dead []string
	for _, file := range files {
		page, err := fs.ReadFile(tree, file)
		if err != nil {
			return nil, err
		}
		text := code.ReplaceAllString(fence.ReplaceAllString(string(page), ""), "")
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			if strings.Contains(m[1], ":") { // an absolute URL
				continue
			}
			to, anchor, _ := strings.Cut(m[1], "#")
			target := file
			if to != "" {
				target = path.Join(path.Dir(file), to)
			}
			linked, err := fs.ReadFile(tree, target)
			if info, e := fs.Stat(tree, target); e == nil && info.IsDir() {
				err = nil
			}
			if err != nil || anchor != "" && !anchors(string(linked))[anchor] {
				dead = append(dead, fmt.Sprintf("%s: %s", file, m[1]))
			}
		}
	}
	return dead, nil
}

// Every relative link in the repository's documents works.
func TestLinks(t *testing.T) {
	t.Parallel()
	dead, err := deadLinks(os.DirFS("../.."))
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range dead {
		t.Errorf("%s leads nowhere", d)
	}
}

// deadLinks finds one dead link of each kind.
func TestDeadLinksAreFound(t *testing.T) {
	t.Parallel()
	dead, err := deadLinks(fstest.MapFS{
		"README.md": {Data: []byte("# One\n[a](docs/a.md) [b](docs/a.md#two-words) [c](#one) [d](docs) [e](https://example.com) `[f](gone)`\n```\n[g](gone)\n```\n")},
		"docs/a.md": {Data: []byte("# Two `words`\n[a](gone.md) [b](../README.md#two) [c](#two-words)\n```sh\n# A comment\n```\n[d](#a-comment)\n")},
	})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := strings.Join(dead, ", "), "docs/a.md: gone.md, docs/a.md: ../README.md#two, docs/a.md: #a-comment"; got != want {
		t.Errorf("dead links are %q, want %q", got, want)
	}
}
