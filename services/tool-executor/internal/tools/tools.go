// Package tools has the built-in tools. Each tool is two files: the code, and a page (.md)
// with its description, input schema and guidance for the model.
//
// The document tools call document-sync on behalf of the context's actor. They send the
// call's key with each change, so that document-sync makes it once however often the call
// runs. Tools of other services call them through package egress; each says in its own comment
// how a repeated call is recognized there.
package tools

import (
	"errors"
	"fmt"
	"time"

	"signalbox.dev/proto/signalbox/browser/v1/browserv1connect"
	"signalbox.dev/proto/signalbox/document/v1/documentv1connect"
	"signalbox.dev/services/tool-executor/internal/egress"
	"signalbox.dev/services/tool-executor/internal/tool"
)

// Deps are the tools' dependencies.
type Deps struct {
	Settings

	Documents documentv1connect.DocumentServiceClient
	Egress    *egress.Client
	// Browser may be nil. BrowserUnavailable returns why it cannot be used now, or ""; nil means
	// that it always can. BrowserPrivate says that it reaches private addresses.
	Browser            browserv1connect.BrowserServiceClient
	BrowserUnavailable func() string
	BrowserPrivate     bool
	Now                func() time.Time // time.Now when nil
}

// New returns all built-in tools. Its errors are programming errors.
func New(d Deps) ([]tool.Tool, error) {
	if d.Documents == nil || d.Egress == nil {
		return nil, errors.New("the tools need a document service and an egress")
	}
	if d.Now == nil {
		d.Now = time.Now
	}
	var out []tool.Tool
	for _, define := range []func(Deps) (tool.Tool, error){
		getCurrentDatetime, docCreate, docRead, docEdit, docAppend, docList, docDelete, webSearch,
		calendarListEvents, calendarCreateEvent, calendarUpdateEvent, calendarDeleteEvent,
		tasksList, tasksCreate, tasksComplete, tasksDelete, notionSearch, notionReadPage, notionAppend, readResearch,
		browserOpen, browserRead, browserClick, browserType, browserScreenshot,
	} {
		t, err := define(d)
		if err != nil {
			return nil, fmt.Errorf("built-in tools: %w", err)
		}
		out = append(out, t)
	}
	return out, nil
}
