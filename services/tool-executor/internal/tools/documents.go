package tools

import (
	"errors"
	"strings"

	"signalbox.dev/pkg/fault"
	documentv1 "signalbox.dev/proto/signalbox/document/v1"
)

// docError adds a hint for the model to an error of document-sync.
func docError(err error) error {
	f, ok := errors.AsType[*fault.Error](err)
	if !ok {
		return err
	}
	message, hint := f.Message, ""
	if rest, ok := strings.CutPrefix(message, "markdown:"); ok {
		message = "arguments.content:" + rest // the argument's name in the tool
	}
	switch f.Kind {
	case fault.NotFound:
		hint = "; doc_list shows the documents there are"
	case fault.Forbidden:
		hint = "; the person you act for may only read documents"
	}
	return &fault.Error{Kind: f.Kind, Code: f.Code, Message: message + hint, RetryAfter: f.RetryAfter, Err: err}
}

// docWarning tells the model which part of its Markdown was stored differently.
type docWarning struct {
	Line   int32  `json:"line"`
	What   string `json:"what"`
	KeptAs string `json:"kept_as"`
}

func docWarnings(all []*documentv1.Warning) (out []docWarning) {
	for _, w := range all {
		out = append(out, docWarning{w.GetLine(), w.GetWhat(), w.GetKeptAs()})
	}
	return out
}

// docID is the arguments of tools that take only a document.
type docID struct {
	ID string `json:"id"`
}
