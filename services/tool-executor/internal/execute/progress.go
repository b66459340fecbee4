package execute

import (
	"context"
	"sync"
	"time"

	toolv1 "signalbox.dev/proto/signalbox/tool/v1"
	"signalbox.dev/services/tool-executor/internal/tool"
)

const (
	// reportEvery is how often viewers get a call's progress at most. Reports in between are
	// dropped.
	reportEvery = time.Second
	// maxReport bounds the message, in runes.
	maxReport = 200
)

// reporter returns a function for Call.Progress, which calls alive for each report.
func (e *Executor) reporter(ctx context.Context, j *job, alive func()) func(tool.Progress) {
	var mu sync.Mutex // guards next
	var next time.Time
	due := func(now time.Time) bool {
		mu.Lock()
		defer mu.Unlock()
		if now.Before(next) {
			return false
		}
		next = now.Add(reportEvery)
		return true
	}
	return func(p tool.Progress) {
		if ctx.Err() != nil {
			return
		}
		alive()
		if !due(time.Now()) {
			return
		}
		m := &toolv1.Progress{Key: j.msg.GetKey(), RunId: j.msg.GetRunId(), Message: clip(p.Message, maxReport)}
		if p.Percent >= 0 {
			m.Percent = new(int32(min(p.Percent, 100)))
		}
		e.cfg.Report(ctx, m)
	}
}
