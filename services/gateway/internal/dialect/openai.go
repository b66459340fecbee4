package dialect

import (
	"strconv"
	"strings"

	"signalbox.dev/pkg/id"
	runv1 "signalbox.dev/proto/signalbox/run/v1"
)

// A run can take several of OpenAI's responses: one ends when the run waits for the results of
// client tools, and the request with the results begins the next part.

// ResponseID is the id of a part of a run, from 1, in OpenAI's Responses API.
func ResponseID(run string, part int) string { return "resp_" + partID(run, part) }

func partID(run string, part int) string {
	short := strings.ReplaceAll(run, "-", "")
	if part < 2 {
		return short
	}
	return short + "_" + strconv.Itoa(part)
}

// ParseResponseID is the inverse of ResponseID.
func ParseResponseID(s string) (run string, part int, ok bool) {
	rest, ok := strings.CutPrefix(s, "resp_")
	short, number, more := strings.Cut(rest, "_")
	if run = longID(short); !ok || run == "" {
		return "", 0, false
	}
	if !more {
		return run, 1, true
	}
	part, err := strconv.Atoi(number)
	return run, part, err == nil && part > 1 && strconv.Itoa(part) == number
}

// longID returns the canonical form of an id without hyphens, or "".
func longID(short string) string {
	if len(short) != 32 || short != strings.ToLower(short) {
		return ""
	}
	long := short[:8] + "-" + short[8:12] + "-" + short[12:16] + "-" + short[16:20] + "-" + short[20:]
	if _, err := id.Parse[id.Run](long); err != nil {
		return ""
	}
	return long
}

// CallRef is what a tool call's id says to OpenAI's clients, which send it back with the result:
// the call, its run and step, and the part of the run that follows the result.
type CallRef struct {
	Run  string
	Part int
	Step int32 // -1 in an id of an earlier version
	Call string
}

// String returns the id.
func (c CallRef) String() string {
	at := strconv.Itoa(c.Part)
	if c.Step >= 0 {
		at += "-" + strconv.Itoa(int(c.Step))
	}
	return "call_" + strings.ReplaceAll(c.Run, "-", "") + "_" + at + "_" + c.Call
}

// ParseCallRef is the inverse of CallRef.String.
func ParseCallRef(s string) (CallRef, bool) {
	fields := strings.SplitN(s, "_", 4)
	if len(fields) != 4 || fields[0] != "call" || fields[3] == "" {
		return CallRef{}, false
	}
	at, number, hasStep := strings.Cut(fields[2], "-")
	part, err := strconv.Atoi(at)
	step := int64(-1)
	if hasStep && err == nil {
		step, err = strconv.ParseInt(number, 10, 32)
	}
	c := CallRef{longID(fields[1]), part, int32(step), fields[3]}
	return c, err == nil && part > 1 && c.Run != "" && c.String() == s
}

// tokens counts what a response has used.
type tokens struct{ in, out int64 }

func (t tokens) minus(o tokens) tokens { return tokens{t.in - o.in, t.out - o.out} }

func (t tokens) appendTo(o jsonObject, key, in, out string) jsonObject {
	o = append(o.key(key), '{', '"')
	o = append(append(o, in...), `":`...)
	o = strconv.AppendInt(o, t.in, 10)
	return o.number(out, t.out).number("total_tokens", t.in+t.out).end()
}

// rope is a text to which readers of the same beginning can add without copying it.
type rope struct {
	before *rope
	text   string
	size   int
}

func (r *rope) add(text string) *rope {
	size := len(text)
	if r != nil {
		size += r.size
	}
	return &rope{r, text, size}
}

// String returns the text.
func (r *rope) String() string {
	if r == nil {
		return ""
	}
	b := make([]byte, r.size)
	for ; r != nil; r = r.before {
		copy(b[r.size-len(r.text):], r.text)
	}
	return string(b)
}

func seconds(e *runv1.Event) int64 { return e.GetTime().GetSeconds() }
