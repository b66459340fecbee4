package apis

import (
	"crypto/sha1" //nolint:gosec // git names contents by it
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"maps"
	"net/http"
	"path"
	"slices"
	"strings"
)

// githubError is an error as GitHub's API writes it.
func githubError(e *apiError) any {
	message := e.message
	if e.reason == "rateLimitExceeded" {
		message = "API rate limit exceeded for user ID 1."
	}
	return object{"message": message, "documentation_url": "https://docs.github.com/rest", "status": fmt.Sprint(e.status)}
}

// Repo is the repository that there is.
const Repo = "signalbox/research"

func (s *Server) githubRoutes() {
	s.handle("github", "GET /repos/{owner}/{repo}/contents/{path...}", func(r *request) (object, *apiError) {
		if r.PathValue("owner")+"/"+r.PathValue("repo") != Repo {
			return nil, refuse(http.StatusNotFound, "", "Not Found")
		}
		if ref := r.URL.Query().Get("ref"); ref != "" && ref != "main" {
			return nil, refuse(http.StatusNotFound, "", "No commit found for the ref %s", ref)
		}
		return contents(strings.Trim(r.PathValue("path"), "/"))
	})
}

// base64Lines is how many characters of base64 GitHub puts on a line.
const base64Lines = 60

// largest is the size up to which GitHub sends contents in JSON.
const largest = 1 << 20

func contents(name string) (object, *apiError) {
	f, ok := files[name]
	if !ok {
		return listing(name)
	}
	o := entry(name, f)
	if o["type"] != "file" {
		return o, nil
	}
	o["encoding"], o["content"] = "none", ""
	if len(f.text) <= largest {
		o["encoding"] = "base64"
		var b strings.Builder
		for chunk := range slices.Chunk([]byte(base64.StdEncoding.EncodeToString([]byte(f.text))), base64Lines) {
			b.Write(chunk)
			b.WriteByte('\n')
		}
		o["content"] = b.String()
	}
	return o, nil
}

// entry describes a file, as in the listing of a directory.
func entry(name string, f file) object {
	o := object{"name": path.Base(name), "path": name, "type": "file", "size": len(f.text), "sha": sha(f.text)}
	switch {
	case f.link != "":
		o["type"], o["target"], o["size"] = "symlink", f.link, len(f.link)
	case f.module != "":
		o["type"], o["submodule_git_url"], o["size"] = "submodule", f.module, 0
	}
	return o
}

func sha(content string) string {
	sum := sha1.Sum(fmt.Appendf(nil, "blob %d\x00%s", len(content), content)) //nolint:gosec // as git does
	return hex.EncodeToString(sum[:])
}

func listing(dir string) (object, *apiError) {
	prefix := dir + "/"
	if dir == "" {
		prefix = ""
	}
	var all []object
	seen := map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		rest, ok := strings.CutPrefix(name, prefix)
		if !ok {
			continue
		}
		if first, _, deeper := strings.Cut(rest, "/"); deeper {
			if !seen[first] {
				all = append(all, object{"name": first, "path": prefix + first, "type": "dir", "size": 0})
			}
			seen[first] = true
			continue
		}
		all = append(all, entry(name, files[name]))
	}
	if len(all) == 0 {
		return nil, refuse(http.StatusNotFound, "", "Not Found")
	}
	return object{"\x00list": all}, nil
}
