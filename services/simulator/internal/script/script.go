// Package script determines what the simulated provider answers. A script is a YAML file with a
// list of rules; the first rule whose conditions hold for a request gives the answer. The
// README.md of services/simulator is the reference, and builtin.yaml the largest example.
//
// A Script is immutable once parsed. The caller passes the state that changes between requests,
// the counts of faults with "times", as a Tally. A Library has scripts by name and returns
// whole scripts, so that replacing one does not affect active answers.
package script

import (
	"slices"
	"time"

	"signalbox.dev/services/simulator/internal/chat"
)

// Bounds of a script, checked when it is loaded.
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
	Models      []string `yaml:"models"` // if set, every other model is unknown
	Reasoning   string   `yaml:"reasoning"`
	Chunk       *Chunk   `yaml:"chunk"` // for actions that set none
	Delay       Duration `yaml:"delay"`
	Wire        *Wire    `yaml:"wire"`
	Rules       []Rule   `yaml:"rules"`

	version [32]byte // hash of the source, so that a new source has new counts
}

// Rule is one rule of a script: its conditions and its actions.
type Rule struct {
	Name      string   `yaml:"name"`
	When      When     `yaml:"when"`
	Needs     Names    `yaml:"needs"` // tools without which Otherwise applies
	Then      []Action `yaml:"then"`
	Otherwise []Action `yaml:"otherwise"`
	Wire      *Wire    `yaml:"wire"`
}

// When has a rule's conditions. All that are set must hold.
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

// ResultWhen is a condition on the latest tool results.
type ResultWhen struct {
	Tool  string   `yaml:"tool"`
	Match *Pattern `yaml:"match"`
	Error *bool    `yaml:"error"`
}

// Wire determines how the bytes are sent.
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

// Knows reports whether the script answers a model. A script without a list of models answers
// every model.
func (s *Script) Knows(model string) bool {
	return len(s.Models) == 0 || slices.Contains(s.Models, model)
}
