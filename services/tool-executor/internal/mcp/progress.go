package mcp

import (
	"strconv"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"signalbox.dev/pkg/visible"
	"signalbox.dev/services/tool-executor/internal/tool"
)

// watched are the calls of a link whose progress the server may report, by their tokens.
type watched struct {
	mu    sync.Mutex // guards the fields below
	last  int
	calls map[string]watchedCall
}

type watchedCall struct {
	operation *operation
	report    func(tool.Progress)
}

// watch returns a token under which the server reports the progress of a call, until done is
// called.
func (l *link) watch(op *operation, report func(tool.Progress)) (token string, done func()) {
	l.watched.mu.Lock()
	defer l.watched.mu.Unlock()
	if l.watched.calls == nil {
		l.watched.calls = map[string]watchedCall{}
	}
	l.watched.last++
	token = strconv.Itoa(l.watched.last)
	l.watched.calls[token] = watchedCall{op, report}
	return token, func() {
		l.watched.mu.Lock()
		defer l.watched.mu.Unlock()
		delete(l.watched.calls, token)
	}
}

// progress passes a server's report on. Reports about calls that have ended are dropped.
func (l *link) progress(p *mcp.ProgressNotificationParams) {
	token, _ := p.ProgressToken.(string)
	l.watched.mu.Lock()
	call, ok := l.watched.calls[token]
	l.watched.mu.Unlock()
	if !ok {
		return
	}
	call.operation.progressed()
	if l.process {
		l.base.progressed()
	}
	percent := -1
	if p.Total > 0 && p.Progress >= 0 {
		percent = int(min(p.Progress/p.Total, 1) * 100)
	}
	call.report(tool.Progress{Message: clip(visible.Text(p.Message), maxSaid), Percent: percent})
}
