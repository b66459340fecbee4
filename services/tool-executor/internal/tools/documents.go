package tools

import (
	"errors"
	"strings"

	"signalbox.dev/pkg/fault"
)

// docError adds to what document-sync says what the model can do about it.
func docError(err error) error {
	f, ok := errors.AsType[*fault.Error](err)
	if !ok {
		return err
	}
	message, hint := f.Message, ""
	if rest, ok := strings.CutPrefix(message, "markdown:"); ok {
		message = "arguments.content:" + rest // what the model called it
	}
	switch f.Kind {
	case fault.NotFound:
		hint = "; doc_list shows the documents there are"
	case fault.Forbidden:
		hint = "; the person you act for may only read documents"
	}
	return &fault.Error{Kind: f.Kind, Code: f.Code, Message: message + hint, RetryAfter: f.RetryAfter, Err: err}
}

// docID is the argument of tools that need nothing but a document.
type docID struct {
	ID string `json:"id"`
}
