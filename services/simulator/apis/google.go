package apis

import (
	"encoding/base64"
	"fmt"
	"hash/crc32"
	"net/http"
	"net/url"
	"strconv"
	"strings"
)

// googleError is an error as Google's APIs write it.
func googleError(e *apiError) any {
	return object{"error": object{
		"code": e.status, "message": e.message,
		"errors": []object{{"message": e.message, "domain": domain(e.reason), "reason": e.reason}},
	}}
}

func domain(reason string) string {
	switch reason {
	case "rateLimitExceeded", "userRateLimitExceeded", "quotaExceeded":
		return "usageLimits"
	}
	return "global"
}

var (
	errNotFound = refuse(http.StatusNotFound, "notFound", "Not Found")
	errDeleted  = refuse(http.StatusGone, "deleted", "Resource has been deleted")
	errFull     = refuse(http.StatusForbidden, "quotaExceeded", "Calendar usage limits exceeded.")
)

func invalid(format string, args ...any) *apiError {
	return refuse(http.StatusBadRequest, "invalid", format, args...)
}

// partial applies the parameter fields to an answer.
func (r *request) partial(body object, e *apiError) (object, *apiError) {
	fields := r.URL.Query().Get("fields")
	if e != nil || fields == "" || body == nil {
		return body, e
	}
	mask, rest := parseFields(fields, 0)
	if mask == nil || rest != "" {
		return nil, refuse(http.StatusBadRequest, "invalidParameter", "Invalid field selection %s", fields)
	}
	out, _ := mask.apply(body).(object)
	return out, nil
}

// mask is a parsed selection of fields; an empty one selects everything below.
type mask map[string]mask

const maxDepth = 8

// parseFields reads a selection such as a,b(c,d/e) up to a closing parenthesis. It returns nil
// for one that is malformed.
func parseFields(s string, depth int) (m mask, rest string) {
	m = mask{}
	for depth < maxDepth {
		i := strings.IndexAny(s, ",()/")
		if i < 0 {
			i = len(s)
		}
		name := s[:i]
		if name == "" {
			return nil, s
		}
		var below mask
		s = s[i:]
		switch {
		case strings.HasPrefix(s, "("):
			if below, s = parseFields(s[1:], depth+1); below == nil || !strings.HasPrefix(s, ")") {
				return nil, s
			}
			s = s[1:]
		case strings.HasPrefix(s, "/"):
			j := strings.IndexAny(s, ",)")
			if j < 0 {
				j = len(s)
			}
			if below, _ = parseFields(s[1:j], depth+1); below == nil {
				return nil, s
			}
			s = s[j:]
		}
		m[name] = below
		if !strings.HasPrefix(s, ",") {
			return m, s
		}
		s = s[1:]
	}
	return nil, s
}

func (m mask) apply(v any) any {
	if len(m) == 0 || m["*"] != nil {
		return v
	}
	switch v := v.(type) {
	case object:
		out := object{}
		for name, below := range m {
			if inner, ok := v[name]; ok {
				out[name] = below.apply(inner)
			}
		}
		return out
	case []object:
		out := make([]object, 0, len(v))
		for _, o := range v {
			inner, _ := m.apply(o).(object)
			out = append(out, inner)
		}
		return out
	case []any:
		out := make([]any, 0, len(v))
		for _, o := range v {
			out = append(out, m.apply(o))
		}
		return out
	}
	return v
}

// page cuts a list as maxResults and pageToken ask. A token is good for the same query only.
func (r *request) page(all []object, usual, most int) (items []object, next string, e *apiError) {
	q := r.URL.Query()
	size := usual
	if v := q.Get("maxResults"); v != "" {
		n, err := strconv.Atoi(v)
		if err != nil || n < 1 {
			return nil, "", invalid("Invalid value for maxResults: %s", v)
		}
		size = min(n, most)
	}
	from := 0
	if token := q.Get("pageToken"); token != "" {
		plain, err := base64.RawURLEncoding.DecodeString(token)
		n, sum := 0, uint32(0)
		if _, scan := fmt.Sscanf(string(plain), "%d.%d", &n, &sum); err != nil || scan != nil || n < 0 || sum != digest(q) {
			return nil, "", invalid("Invalid page token value.")
		}
		from = min(n, len(all))
	}
	end := min(from+size, len(all))
	if end < len(all) {
		next = base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, "%d.%d", end, digest(q)))
	}
	return all[from:end], next, nil
}

// digest is of all parameters that select what is listed.
func digest(q url.Values) uint32 {
	var b strings.Builder
	for _, name := range []string{"timeMin", "timeMax", "q", "singleEvents", "orderBy", "showDeleted", "showCompleted", "showHidden", "updatedMin"} {
		b.WriteString(name + "=" + q.Get(name) + "&")
	}
	return crc32.ChecksumIEEE([]byte(b.String()))
}

// list is Google's answer with a page of things.
func list(kind string, items []object, next string) object {
	out := object{"kind": kind, "items": items}
	if next != "" {
		out["nextPageToken"] = next
	}
	return out
}

// merge applies a patch: null removes, objects are merged, anything else replaces.
func merge(into, patch object) {
	for name, v := range patch {
		inner, isObject := v.(object)
		old, had := into[name].(object)
		switch {
		case v == nil:
			delete(into, name)
		case isObject && had:
			merge(old, inner)
		case isObject:
			fresh := object{}
			merge(fresh, inner)
			into[name] = fresh
		default:
			into[name] = v
		}
	}
}
