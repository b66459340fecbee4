package loop

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"signalbox.dev/pkg/panics"
	runv1 "signalbox.dev/proto/signalbox/run/v1"
	"signalbox.dev/services/agent-runner/internal/llm"
	"signalbox.dev/services/agent-runner/internal/modelmsg"
	"signalbox.dev/services/agent-runner/internal/prompt"
	"signalbox.dev/services/agent-runner/internal/run"
)

// titleTime bounds the call for a title.
const titleTime = 30 * time.Second

// Titles says which model names sessions.
type Titles struct {
	off bool
	// models are by provider. The others use the run's model.
	models map[string]string
}

// ParseTitles parses off, same (the run's model), or a list of provider/model pairs for the
// providers that shall use another model.
func ParseTitles(s string) (Titles, error) {
	switch s {
	case "off":
		return Titles{off: true}, nil
	case "same":
		return Titles{}, nil
	}
	t := Titles{models: map[string]string{}}
	for pair := range strings.SplitSeq(s, ",") {
		provider, model, _ := strings.Cut(strings.TrimSpace(pair), "/")
		if provider == "" || model == "" {
			return Titles{}, fmt.Errorf("%q is neither off nor same nor a list of provider/model pairs, separated by commas", s)
		}
		t.models[provider] = model
	}
	return t, nil
}

// nameSession asks a model for the session's title while the run's first step is under way, so that
// the run does not wait. It does so in a session's first run, unless a person has given a title or
// the simulator answers. The run's goroutine tells viewers of the title (tellTitle) if it comes
// before the run's end. If there is none, the session keeps the title of its first message.
func (a *answering) nameSession(ctx context.Context, index int) {
	r := &a.claim.Run
	source := a.session.TitleSource
	if a.titled != nil || a.cfg.Titles.off || index > 0 || r.Ordinal > 1 || r.Simulated() || source == "person" || source == "model" {
		return
	}
	var asked string
	for i := range a.history {
		if a.history[i].ID == r.UserMessage {
			asked = modelmsg.PlainText(a.history[i].Content)
		}
	}
	a.titled = make(chan string, 1)
	if strings.TrimSpace(asked) == "" {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), titleTime)
	stop := context.AfterFunc(a.life, cancel)                                 //nolint:contextcheck // the loop's end ends it too
	l, titled, model, claim := a.Loop, a.titled, a.model, &run.Claim{Run: *r} // they may outlive a
	l.aside.Go(func() {
		defer cancel()
		defer stop()
		err := panics.Try(func() error { return l.title(ctx, claim, model, asked, titled) })
		if err != nil {
			l.Log.WarnContext(ctx, "session not named by a model", "session", claim.Run.Session, "run", claim.Run.ID, "error", err)
		}
	})
}

// title makes one call for a title, and sends the title that it has set.
func (l *Loop) title(ctx context.Context, c *run.Claim, model Model, asked string, titled chan<- string) error {
	provider, name := c.Run.Provider, cmp.Or(l.cfg.Titles.models[c.Run.Provider], c.Run.Model)
	entry, _ := l.Catalogue.Lookup(provider, name)
	req := prompt.Title(&c.Run, entry, asked)
	stream, err := model.Stream(ctx, req)
	if err != nil {
		return err
	}
	defer stream.Close()
	for stream.Next() {
	}
	res, failure := stream.Response(), stream.Err()
	if failure != nil {
		res = stream.Partial()
	}
	stream.Estimate(req, res)
	t := run.Title{Provider: provider, Model: name, Usage: usageOf(res)}
	t.CostMicros = l.costOf(provider, name, t.Usage)
	if failure == nil && res.Finish != llm.FinishContentFilter {
		t.Text = modelmsg.ModelTitle(res.Text())
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
	defer cancel()
	set, err := l.Store.SetTitle(ctx, c, t)
	if err == nil && set {
		titled <- t.Text
	}
	if failure == nil && t.Text == "" {
		failure = errors.New("the model wrote no title")
	}
	return errors.Join(failure, err)
}

// tellTitle tells viewers of the title, if it has come.
func (a *answering) tellTitle(ctx context.Context) error {
	select {
	case title := <-a.titled:
		return a.log.Append(ctx, &runv1.Event{Body: &runv1.Event_SessionTitle{SessionTitle: &runv1.SessionTitle{Title: title}}})
	default:
		return nil
	}
}

// Close ends calls that outlive their runs, and waits for them.
func (l *Loop) Close() {
	l.end()
	l.aside.Wait()
}
