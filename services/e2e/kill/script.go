package kill

import (
	_ "embed"
	"fmt"
	"strconv"
	"strings"
)

//go:embed script.yaml
var script []byte

// scriptName is the script's, and so the model is sim/kill.
const scriptName, model = "kill", "sim/kill"

// tools are the tools that the script calls.
var tools = []string{
	"get_current_datetime", "doc_create", "doc_append", "test_pure", "test_keyed", "test_verify", "test_unsafe",
	"doc_delete", "test_asked_keyed", "test_asked_verify", "test_asked_unsafe",
}

// kind is the kind of work that a message asks for.
type kind string

const (
	text  kind = "text"  // only words
	clock kind = "clock" // two calls of a tool that only reads
	doc   kind = "doc"   // three steps of calls that create and extend a document
	work  kind = "work"  // a call in the middle, during which another message can join
	far   kind = "far"   // a far-end call of each kind of effect
	wait  kind = "wait"  // a far-end call that takes seconds
	asked kind = "asked" // calls of each kind of effect that a person has to approve
	turn  kind = "turn"  // the message that joins
	long  kind = "long"  // words for half a minute, to be stopped
)

// ask is a message and its outcome.
type ask struct {
	id   string // unique in all runs
	kind kind
	n    int // of text: the number to count to
	key  string
	mode string
	span // from the first attempt to the acceptance, as seen by the talker
	run  string
	// ordinal of the run, 0 before it is known
	ordinal int64
}

func (a *ask) content() string {
	if a.kind == text {
		return fmt.Sprintf("text %s %d", a.id, a.n)
	}
	return fmt.Sprintf("%s %s", a.kind, a.id)
}

// answer is the text of the last step after success.
func (a *ask) answer() string {
	switch a.kind {
	case text:
		return fmt.Sprintf("answer %s: %s end %s", a.id, count(a.n), a.id)
	case clock:
		return fmt.Sprintf("clock %s has struck. end %s", a.id, a.id)
	case doc:
		return fmt.Sprintf("doc %s is written. end %s", a.id, a.id)
	case work:
		return fmt.Sprintf("worked %s to its end. end %s", a.id, a.id)
	case far:
		return fmt.Sprintf("far %s is done. end %s", a.id, a.id)
	case wait:
		return fmt.Sprintf("waited for %s. end %s", a.id, a.id)
	case asked:
		return fmt.Sprintf("asked %s is answered. end %s", a.id, a.id)
	case turn:
		return fmt.Sprintf("turned %s as asked. end %s", a.id, a.id)
	case long:
		return fmt.Sprintf("long %s: %s end %s", a.id, count(400), a.id)
	}
	return ""
}

// failure is the text of the last step after a failed tool call.
func (a *ask) failure() string { return fmt.Sprintf("failed %s: a tool said so. end %s", a.id, a.id) }

// document is the name of the document that a doc or asked message creates; markers are the texts added to
// it.
func (a *ask) document() string  { return "kill " + a.id }
func (a *ask) markers() []string { return []string{a.id + "-a.", a.id + "-b.", a.id + "-c."} }

// count is the script language's function of that name.
func count(n int) string {
	var b strings.Builder
	for i := 1; i <= n; i++ {
		b.WriteString(strconv.Itoa(i))
		switch {
		case i == n:
		case i%10 == 0:
			b.WriteByte('\n')
		default:
			b.WriteByte(' ')
		}
	}
	return b.String()
}
