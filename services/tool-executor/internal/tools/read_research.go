package tools

import (
	"context"
	_ "embed"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"strings"

	"signalbox.dev/pkg/fault"
	toolv1 "signalbox.dev/proto/signalbox/tool/v1"
	"signalbox.dev/services/tool-executor/internal/egress"
	"signalbox.dev/services/tool-executor/internal/tool"
)

//go:embed read_research.md
var readResearchPage string

const (
	github       = "github"
	researchRoot = "ideas/"
	maxResearch  = 50 << 10 // bytes of a file
)

type researchArgs struct {
	Path string `json:"path"`
}

// researchRead and researchFailed are the shapes of the result.
type researchRead struct {
	OK      bool   `json:"ok"`
	Content string `json:"content"`
	Bytes   int    `json:"bytes"`
}

type researchFailed struct {
	OK        bool   `json:"ok"`
	ErrorType string `json:"error_type"`
	Message   string `json:"message"`
}

func researchError(errorType, format string, args ...any) tool.Result {
	return tool.Failure(errorType, researchFailed{false, errorType, fmt.Sprintf(format, args...)})
}

func readResearch(d Deps) (tool.Tool, error) {
	spec, err := tool.Spec{
		Name: "read_research", Effect: toolv1.Effect_EFFECT_PURE, ReadsUntrusted: true, ReadsPrivate: true, Less: "read a smaller file",
	}.Describe(readResearchPage)
	return tool.Define(spec, func(ctx context.Context, _ tool.Call, a researchArgs) (tool.Result, error) {
		path, violation := ResearchPath(a.Path)
		if violation != "" {
			return researchError("path_validation", "%s", violation), nil
		}
		return d.readFile(ctx, path, strings.TrimPrefix(path, researchRoot)), nil
	}, func(a researchArgs) string { return a.Path }).When(func(ctx context.Context) tool.Availability {
		if d.ResearchRepo == "" {
			return tool.Availability{Reason: "no research repository is configured: the operator names one in RESEARCH_REPO"}
		}
		return d.Egress.Available(ctx, github)
	}), err
}

var researchForm = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9/_.-]{0,199}$`)

// ResearchPath returns the path in the repository for a path of the arguments, or the message of
// the first rule that it violates.
func ResearchPath(path string) (full, violation string) {
	path = strings.Trim(path, " ")
	switch {
	case strings.ContainsFunc(path, func(r rune) bool { return r < ' ' }):
		return "", "Path must not contain control characters."
	case strings.Contains(path, "%"):
		return "", "Path must not contain percent signs (%)."
	case strings.Contains(path, "..") || strings.Contains(path, `\`):
		return "", "Path must not contain '..' or backslashes."
	case strings.HasPrefix(path, researchRoot):
		return "", "Path must not start with 'ideas/': it is relative to that directory."
	case strings.HasSuffix(path, "/"):
		return "", "Path must not end with '/': name a file."
	case strings.Contains(path, "//"):
		return "", "Path must not contain '//'."
	case !researchForm.MatchString(path):
		return "", "Path must begin with a letter or digit and contain at most 200 letters, digits, '/', '_', '.' and '-'."
	}
	return researchRoot + path, ""
}

// readFile reads a file of the repository; name is what the model calls it.
func (d Deps) readFile(ctx context.Context, path, name string) tool.Result {
	segments := append([]string{"repos"}, strings.Split(d.ResearchRepo, "/")...)
	target, err := egress.Path(append(append(segments, "contents"), strings.Split(path, "/")...)...)
	if err != nil { // a segment is a single dot
		return researchError("file_not_found", "File not found: %s", name)
	}
	q := url.Values{}
	if d.ResearchRef != "" {
		q.Set("ref", d.ResearchRef)
	}
	var answer contents
	_, err = d.Egress.Do(ctx, egress.Request{
		Provider: github, Path: target, Query: q,
		Header: map[string]string{"Accept": "application/vnd.github+json", "X-GitHub-Api-Version": "2022-11-28"},
	}, &answer)
	switch f := fault.From(err); {
	case err == nil:
	case f.Kind == fault.NotFound:
		return researchError("file_not_found", "File not found: %s", name)
	default:
		cause, _ := errors.AsType[*tool.Cause](err)
		return researchError("api_error", "Failed to read file: %s", f.Message).WithCause(cause)
	}
	switch {
	case answer.Type != "file" || !strings.HasPrefix(answer.Path, researchRoot):
		return researchError("api_error", "Path is not a file: %s", name)
	case answer.Size == nil:
		return researchError("api_error", "Failed to read file: GitHub did not say how large it is")
	case *answer.Size > maxResearch:
		return researchError("file_too_large", "File exceeds 50KB limit. Try a more specific path or request a summary.")
	}
	text, err := base64.StdEncoding.DecodeString(strings.ReplaceAll(answer.Content, "\n", ""))
	if err != nil || answer.Encoding != "base64" || len(text) != *answer.Size {
		return researchError("api_error", "Failed to read file: GitHub did not send its content")
	}
	return tool.Object(researchRead{true, string(text), len(text)})
}

// contents is GitHub's answer about a file, or a list for a directory.
type contents struct {
	Type     string `json:"type"`
	Path     string `json:"path"`
	Size     *int   `json:"size"`
	Encoding string `json:"encoding"`
	Content  string `json:"content"`
}

// UnmarshalJSON takes a list for what is no file.
func (c *contents) UnmarshalJSON(b []byte) error {
	if strings.HasPrefix(strings.TrimSpace(string(b)), "[") {
		c.Type = "dir"
		return nil
	}
	type plain contents
	return json.Unmarshal(b, (*plain)(c))
}
