package modelmsg

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"net/url"
	"strings"
	"unicode"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/visible"
	"signalbox.dev/services/agent-runner/internal/llm/jscan"
)

// Limits bounds what a person may send in one message. A zero field means its default.
type Limits struct {
	Bytes     int // the whole content; default 24 MiB, which leaves room below the broker's 32 MiB
	Parts     int // default 64
	TextBytes int // all text together; default 1 MiB
	FileBytes int // one file, as base64; default 20 MiB
}

func (l Limits) withDefaults() Limits {
	l.Bytes = cmp.Or(l.Bytes, 24<<20)
	l.Parts = cmp.Or(l.Parts, 64)
	l.TextBytes = cmp.Or(l.TextBytes, 1<<20)
	l.FileBytes = cmp.Or(l.FileBytes, 20<<20)
	return l
}

const (
	maxURL      = 8 << 10
	maxFilename = 255
	maxMedia    = 127
)

// Input converts the content of an API request to stored content. A string stays a string.
// Text and file parts are checked and keep only the known fields; data: URLs become base64
// with their media type. Empty text parts are dropped.
//
// The error is a *fault.Error, Invalid or TooLarge, whose message names the part.
func Input(raw json.RawMessage, limits Limits) (json.RawMessage, error) {
	in := input{limits: limits.withDefaults()}
	if len(raw) > in.limits.Bytes {
		return nil, tooLarge("content is %d bytes long, %d are allowed", len(raw), in.limits.Bytes)
	}
	raw = jscan.ValidUTF8(raw)
	r := jscan.NewReader(raw)
	switch r.Kind() {
	case jscan.String:
		return in.plain(&r)
	case jscan.Array:
		return in.array(&r)
	}
	return nil, invalid("content has to be a string or an array of parts")
}

type input struct {
	limits Limits
	out    []byte
	text   int
	parts  int
}

func (in *input) plain(r *jscan.Reader) (json.RawMessage, error) {
	s, _ := r.Str()
	if !r.Done() {
		return nil, invalid("content is not valid JSON")
	}
	text := s.String()
	if strings.TrimSpace(text) == "" {
		return nil, invalid("content is empty: write something, or attach a file")
	}
	if len(text) > in.limits.TextBytes {
		return nil, tooLarge("content is %d bytes long, %d are allowed; attach long text as a file", len(text), in.limits.TextBytes)
	}
	return jscan.AppendString(nil, text), nil
}

func (in *input) array(r *jscan.Reader) (json.RawMessage, error) {
	in.out = append(in.out, '[')
	r.Array()
	blank := true
	for i := 0; r.Elem(); i++ {
		if i >= in.limits.Parts {
			return nil, tooLarge("content has more than %d parts", in.limits.Parts)
		}
		raw := r.Skip()
		if raw == nil {
			break
		}
		hasContent, err := in.part(i, raw)
		if err != nil {
			return nil, err
		}
		blank = blank && !hasContent
	}
	if !r.Done() {
		return nil, invalid("content is not valid JSON")
	}
	if blank {
		return nil, invalid("content is empty: write something, or attach a file")
	}
	return append(in.out, ']'), nil
}

// part writes one part and reports whether it is more than white space.
func (in *input) part(i int, raw []byte) (bool, error) {
	r := jscan.NewReader(raw)
	if !r.Object() {
		return false, invalid("content[%d] has to be an object with a type", i)
	}
	var typ, text, media, data, name field
	for key, ok := r.Key(); ok; key, ok = r.Key() {
		switch string(key) {
		case "type":
			typ.read(&r)
		case "text":
			text.read(&r)
		case "mediaType":
			media.read(&r)
		case "data":
			data.read(&r)
		case "filename":
			name.read(&r)
		default:
			r.Skip()
		}
	}
	switch typ.value {
	case Text:
		if !text.ok {
			return false, invalid("content[%d].text has to be a string", i)
		}
		return in.textPart(i, text.value)
	case File:
		return true, in.filePart(i, media, data, name)
	case "image":
		return false, invalid(`content[%d]: image parts are not accepted; send images as {"type":"file","mediaType":"image/png","data":…}`, i)
	case "":
		return false, invalid(`content[%d].type has to be "text" or "file"`, i)
	}
	return false, invalid(`content[%d]: unknown part type %q; use "text" or "file"`, i, clip(typ.value))
}

// field is a string member of a part.
type field struct {
	value string
	set   bool // present and not null
	ok    bool // a string
}

func (f *field) read(r *jscan.Reader) {
	if r.Kind() == jscan.Null {
		r.Skip()
		return
	}
	f.set = true
	s, ok := r.Str()
	f.value, f.ok = s.String(), ok
}

func (in *input) textPart(i int, text string) (bool, error) {
	if in.text += len(text); in.text > in.limits.TextBytes {
		return false, tooLarge("content[%d]: the text is over %d bytes; attach long text as a file", i, in.limits.TextBytes)
	}
	if text == "" {
		return false, nil
	}
	in.comma()
	in.out = append(in.out, `{"type":"text","text":`...)
	in.out = jscan.AppendString(in.out, text)
	in.out = append(in.out, '}')
	return strings.TrimSpace(text) != "", nil
}

func (in *input) comma() {
	if in.parts++; in.parts > 1 {
		in.out = append(in.out, ',')
	}
}

func (in *input) filePart(i int, media, data, name field) error {
	if !data.ok || data.value == "" {
		return invalid("content[%d].data has to be a string: base64, a data: URL or an https URL", i)
	}
	if media.set && !media.ok {
		return invalid("content[%d].mediaType has to be a string", i)
	}
	if name.set && !name.ok || len(name.value) > maxFilename {
		return invalid("content[%d].filename has to be a string of at most %d bytes", i, maxFilename)
	}
	stored, sniffed, err := in.fileData(i, data.value)
	if err != nil {
		return err
	}
	mediaType := media.value
	if mediaType == "" {
		mediaType = sniffed
	}
	mediaType, ok := cleanMedia(mediaType)
	if !ok {
		return invalid("content[%d].mediaType has to be a media type such as image/png", i)
	}
	in.comma()
	in.out = append(in.out, `{"type":"file","mediaType":`...)
	in.out = jscan.AppendString(in.out, mediaType)
	in.out = append(in.out, `,"data":`...)
	in.out = jscan.AppendString(in.out, stored)
	if filename := cleanName(name.value); filename != "" {
		in.out = append(in.out, `,"filename":`...)
		in.out = jscan.AppendString(in.out, filename)
	}
	in.out = append(in.out, '}')
	return nil
}

// fileData returns the data to store, and the media type if the data names one.
func (in *input) fileData(i int, data string) (stored, media string, err error) {
	scheme, rest, hasScheme := strings.Cut(data[:min(len(data), 16)], ":")
	if hasScheme {
		rest = data[len(scheme)+1:]
	}
	switch {
	case !hasScheme:
		stored, err = in.base64(i, data)
		return stored, "", err
	case strings.EqualFold(scheme, "data"):
		return in.dataURL(i, rest)
	case strings.EqualFold(scheme, "https"):
		u, err := url.Parse(data)
		if err != nil || u.Host == "" || u.User != nil || len(data) > maxURL {
			return "", "", invalid("content[%d].data is not a usable https URL", i)
		}
		return "https:" + rest, "", nil
	case strings.EqualFold(scheme, "http"):
		return "", "", invalid("content[%d].data: http URLs are not accepted; use https, or send the file itself as base64", i)
	}
	return "", "", invalid("content[%d].data: URLs of scheme %q are not accepted; use https or base64", i, clip(scheme))
}

// dataURL parses a data: URL (RFC 2397) after its scheme.
func (in *input) dataURL(i int, rest string) (stored, media string, err error) {
	head, body, ok := strings.Cut(rest, ",")
	if !ok {
		return "", "", invalid("content[%d].data is a data: URL without a comma", i)
	}
	media, _, _ = strings.Cut(head, ";")
	if media == "" {
		media = "text/plain"
	}
	if len(head) >= 7 && strings.EqualFold(head[len(head)-7:], ";base64") {
		if strings.Contains(body, "%") {
			if body, err = url.PathUnescape(body); err != nil {
				return "", "", invalid("content[%d].data is a data: URL with a bad %% escape", i)
			}
		}
		stored, err = in.base64(i, body)
		return stored, media, err
	}
	plain, err := url.PathUnescape(body)
	if err != nil {
		return "", "", invalid("content[%d].data is a data: URL with a bad %% escape", i)
	}
	stored, err = in.base64(i, base64.StdEncoding.EncodeToString([]byte(plain)))
	return stored, media, err
}

// base64 checks standard base64 and completes its padding.
func (in *input) base64(i int, s string) (string, error) {
	if len(s) > in.limits.FileBytes {
		return "", tooLarge("content[%d]: the file is over %d bytes as base64", i, in.limits.FileBytes)
	}
	body := strings.TrimRight(s, "=")
	pad := (4 - len(body)%4) % 4
	padded := len(s) - len(body)
	if body == "" || pad == 3 || (padded != 0 && padded != pad) || strings.IndexFunc(body, notBase64) >= 0 {
		return "", invalid("content[%d].data is not valid base64 (standard alphabet, no line breaks)", i)
	}
	return body + "=="[:pad], nil
}

func notBase64(c rune) bool {
	switch {
	case c >= 'A' && c <= 'Z', c >= 'a' && c <= 'z', c >= '0' && c <= '9', c == '+', c == '/':
		return false
	}
	return true
}

// cleanMedia returns the media type in lower case without parameters.
func cleanMedia(s string) (string, bool) {
	s, _, _ = strings.Cut(s, ";")
	s = strings.ToLower(strings.TrimSpace(s))
	typ, sub, ok := strings.Cut(s, "/")
	if !ok || typ == "" || sub == "" || len(s) > maxMedia {
		return "", false
	}
	for _, c := range typ + sub {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && !strings.ContainsRune("!#$&^_.+-", c) {
			return "", false
		}
	}
	return s, true
}

// cleanName returns the part after the last slash without invisible characters and line breaks.
func cleanName(s string) string {
	s = s[strings.LastIndexAny(s, `/\`)+1:]
	return strings.TrimSpace(strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return -1
		}
		return r
	}, visible.Text(s)))
}

func invalid(format string, args ...any) error {
	return fault.Coded(fault.Invalid, "INVALID_CONTENT", format, args...)
}

func tooLarge(format string, args ...any) error {
	return fault.Coded(fault.TooLarge, "CONTENT_TOO_LARGE", format, args...)
}

func clip(s string) string {
	if len(s) > 40 {
		return strings.ToValidUTF8(s[:40], "") + "…"
	}
	return s
}
