// Package script says what the simulated provider answers. A script is a YAML
// file with a list of rules; the first rule whose conditions hold for a request
// gives the answer. The README.md of services/simulator is the reference, and
// builtin.yaml its largest example.
//
// A Script is immutable once parsed. What changes between requests, the counts
// behind "times", lives in a Tally that the caller hands in. A Library holds
// scripts by name under a lock and hands out whole scripts, so that replacing one
// never disturbs an answer that is being made.
package script

import (
	"slices"
	"time"

	"signalbox.dev/services/simulator/internal/chat"
)

// The bounds of a script. Rules and actions beyond them are refused when the
// script is loaded.
const (
	MaxBytes   = 256 << 10
	maxRules   = 500
	maxActions = 200
	maxDelay   = 10 * time.Minute
)

// Script is a parsed script.
type Script struct {
	Name        string   `yaml:"name"`
	Description string   `yaml:"description"`
	Models      []string `yaml:"models"` // when set, every other model is unknown
	Reasoning   string   `yaml:"reasoning"`
	Chunk       *Chunk   `yaml:"chunk"` // for actions that set none
	Delay       Duration `yaml:"delay"`
	Wire        *Wire    `yaml:"wire"`
	Rules       []Rule   `yaml:"rules"`

	version [32]byte // of the source, so that counts do not outlive a new text
}

// Rule is one entry of a script: when it applies, and what is then done.
type Rule struct {
	Name      string   `yaml:"name"`
	When      When     `yaml:"when"`
	Needs     Names    `yaml:"needs"` // tools without which Otherwise is done
	Then      []Action `yaml:"then"`
	Otherwise []Action `yaml:"otherwise"`
	Wire      *Wire    `yaml:"wire"`
}

// When holds a rule's conditions; all that are set must hold.
type When struct {
	User      *Pattern    `yaml:"user"`
	System    *Pattern    `yaml:"system"`
	Model     *Pattern    `yaml:"model"`
	Key       *Pattern    `yaml:"key"`
	File      *Pattern    `yaml:"file"`
	Tool      Names       `yaml:"tool"`
	Missing   Names       `yaml:"missing"`
	Dialect   Names       `yaml:"dialect"`
	Known     Names       `yaml:"known"`
	Result    *ResultWhen `yaml:"result"`
	Turn      int         `yaml:"turn"`
	Thinking  *bool       `yaml:"thinking"`
	Stream    *bool       `yaml:"stream"`
	Continued *bool       `yaml:"continued"`
}

// ResultWhen asks for a tool result that the answer would react to.
type ResultWhen struct {
	Tool  string   `yaml:"tool"`
	Match *Pattern `yaml:"match"`
	Error *bool    `yaml:"error"`
}

// Wire is how the bytes go out.
type Wire struct {
	CRLF     bool              `yaml:"crlf"`
	Write    int               `yaml:"write"`
	Every    Duration          `yaml:"every"`
	Padding  bool              `yaml:"padding"`
	Comments int               `yaml:"comments"`
	Pings    int               `yaml:"pings"`
	Headers  map[string]string `yaml:"headers"`
}

func (w *Wire) shape() chat.Shape {
	if w == nil {
		return chat.Shape{}
	}
	return chat.Shape{
		CRLF: w.CRLF, Write: w.Write, Every: time.Duration(w.Every), Padding: w.Padding,
		Comments: w.Comments, Pings: w.Pings, Headers: w.Headers,
	}
}

// Knows reports whether a request for the model is answered; a script without a
// list of models knows every one.
func (s *Script) Knows(model string) bool {
	return len(s.Models) == 0 || slices.Contains(s.Models, model)
}
