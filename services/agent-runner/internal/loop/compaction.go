package loop

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	runv1 "signalbox.dev/proto/signalbox/run/v1"
	"signalbox.dev/services/agent-runner/internal/compact"
	"signalbox.dev/services/agent-runner/internal/llm"
	"signalbox.dev/services/agent-runner/internal/prompt"
	"signalbox.dev/services/agent-runner/internal/run"
)

// compactedReason marks a step that made a summary instead of an answer.
const compactedReason = "compaction"

const (
	// maxSummary bounds a summary, in bytes. A summary takes at most an eighth of the window.
	maxSummary   = 32 << 10
	summaryShare = 8
	// worthwhile is the part of the window that a summary must free, and that must have been added
	// since a failed one, unless it is asked for or the provider has refused the prompt.
	worthwhile = 10
	// minWindow bounds what a refusal says about the window, in tokens: the sizes are estimates.
	minWindow = 1_000
	// minTranscript is the size in bytes below which a transcript that the provider refuses is not
	// shortened further.
	minTranscript = 2_000
	// maxCompactions is how often in a row a conversation is compacted before its next answer.
	maxCompactions = 2
	maxRequest     = 4_000 // bytes of the user's last request that are kept verbatim
)

// compaction is a summary to be made.
type compaction struct {
	cut    int   // the summary stands for so many messages
	window int64 // of the model, in tokens
}

// summarized is how many messages the session's summary stands for.
func (a *answering) summarized() int {
	if s := a.session.Summary; s != nil {
		return min(s.Messages, len(a.history))
	}
	return 0
}

// promptTokens estimates the size of the next step's prompt: what the provider counted for the last
// answer, and what was added since.
func (a *answering) promptTokens() int64 {
	known, n := 0, int64(0)
	if s := a.session.Summary; s != nil {
		known = s.Known
	}
	for i := len(a.history) - 1; i >= a.summarized(); i-- {
		m := &a.history[i]
		if i >= known && m.Role == string(llm.Assistant) && m.TokensIn != nil && *m.TokensIn > 0 && m.TokensOut != nil {
			return n + *m.TokensIn + *m.TokensOut
		}
		n += compact.Tokens(m.Content)
	}
	n += compact.TokensOf(a.session.SystemPrompt)
	for _, p := range a.preset.Prompt {
		n += compact.TokensOf(p)
	}
	for _, t := range a.tools {
		n += compact.TokensOf(t.GetDescription() + t.GetGuidance() + t.GetInputSchemaJson())
	}
	if s := a.session.Summary; s != nil {
		n += compact.TokensOf(s.Text)
	}
	return n
}

// planCompaction decides whether to make a summary now: if the next prompt comes near the model's
// window, if a person has asked for it, or if the provider has refused the prompt as too long. It returns nil if not, or if there is
// nothing that a summary can replace.
func (a *answering) planCompaction(refused bool) *compaction {
	if a.paused || a.problem != nil || a.noSummary != nil || a.compacted >= maxCompactions || !refused && a.compacted > 0 {
		return nil
	}
	model, _ := a.Catalogue.Lookup(a.claim.Run.Provider, a.claim.Run.Model)
	window, size := int64(model.Context), a.promptTokens()
	forced := refused || a.session.Compact
	if forced {
		window = min(window, max(size, minWindow)) // the model has a smaller one, or its tokens are smaller
	} else if size < a.compactAt(window, int64(prompt.MaxOutput(a.preset, &model))) || a.failedLately(window) {
		return nil
	}
	from := a.summarized()
	cut := compact.Cut(a.history, from, int64(float64(window)*a.cfg.CompactKeep))
	if cut == 0 {
		return nil
	}
	freed := int64(0)
	for i := from; i < cut; i++ {
		freed += compact.Tokens(a.history[i].Content)
	}
	if !forced && freed < window/worthwhile {
		return nil
	}
	return &compaction{cut, window}
}

// failedLately reports whether the model failed to summarize the conversation, and little has been
// added since: every run would pay for another failure.
func (a *answering) failedLately(window int64) bool {
	at := a.session.NoSummaryAt
	if at == 0 || at > len(a.history) { // the latter on another branch
		return false
	}
	added := int64(0)
	for i := range a.history[at:] {
		added += compact.Tokens(a.history[at+i].Content)
	}
	return added < window/worthwhile
}

// compactAt is the size of a prompt from which the conversation is compacted. The answer has to
// fit as well, but a large limit of it must not take more than half of the window.
func (a *answering) compactAt(window, output int64) int64 {
	return min(int64(float64(window)*a.cfg.CompactAt), max(window-output, window/2))
}

// compact makes a summary in a step of its own. done is false if there is none, so that the
// conversation has to be sent as it is; a.noSummary then says why.
func (a *answering) compact(ctx, stoppable context.Context, index int, c *compaction) (done, ended bool, err error) {
	if err := a.log.Append(ctx, waiting(index, "earlier messages are being summarized", time.Time{})); err != nil {
		return false, false, err
	}
	res, err := a.summarize(stoppable, index, c)
	failure, refused := errors.AsType[*llm.Error](err)
	switch {
	case err != nil && stoppable.Err() == nil && refused && !failure.Retryable:
		a.noSummary = failure
	case err != nil:
		if err := a.recordWaste(ctx, index, res); err != nil { // a summary that broke off is not an answer
			return false, false, err
		}
		ended, err = a.callFailed(ctx, stoppable, index, nil, err)
		return false, ended, err
	case strings.TrimSpace(res.Text()) == "" || res.Finish == llm.FinishContentFilter:
		a.noSummary = llm.NewError(llm.KindContentFilter, nil, "the model wrote no summary (%s)", res.Finish)
	case res.Finish == llm.FinishLength: // a summary without its end loses what is newest
		a.noSummary = llm.NewError(llm.KindContextLength, nil, "the model's summary exceeded its limit of output tokens")
	default:
		return true, false, a.commitSummary(ctx, index, c, res)
	}
	a.Metrics.compactions.WithLabelValues("failed").Inc()
	a.Log.WarnContext(ctx, "conversation not compacted", "run", a.claim.Run.ID, "step", index, "error", a.noSummary)
	if err := a.recordWaste(ctx, index, res); err != nil {
		return false, false, err
	}
	a.session.Compact, a.session.NoSummaryAt = false, len(a.history) // the next run would pay for it again
	return false, false, a.retryUnavailable(ctx, func() error { return a.Store.RecordNoSummary(ctx, a.claim, len(a.history)) })
}

// summarize asks the run's model for a summary. It shortens the transcript if the provider refuses
// it as too long.
func (a *answering) summarize(ctx context.Context, index int, c *compaction) (*llm.Response, error) {
	model, _ := a.Catalogue.Lookup(a.claim.Run.Provider, a.claim.Run.Model)
	earlier, from := "", a.summarized()
	if s := a.session.Summary; s != nil {
		earlier = s.Text
	}
	for limit := int(c.window * 6 / 10 * 4); ; limit /= 2 { // tokens of four bytes; the rest is for the answer
		transcript := compact.Transcript(earlier, a.history[from:c.cut], limit)
		req := prompt.Summarize(&a.claim.Run, index, model, transcript, c.window/summaryShare)
		res, err := a.request(ctx, index, req, func(context.Context, int, *llm.Event) (bool, error) { return false, nil })
		if !isTooLong(err) || limit < minTranscript {
			return res, err
		}
		if err := a.recordWaste(ctx, index, res); err != nil {
			return nil, err
		}
	}
}

// commitSummary commits the step that made a summary.
func (a *answering) commitSummary(ctx context.Context, index int, c *compaction, res *llm.Response) error {
	answer := a.toAnswer(index, res)
	answer.Content, answer.Calls, answer.FinishReason = nil, nil, compactedReason
	s := &run.Summary{Messages: c.cut, Known: len(a.history), Run: a.claim.Run.ID, Nth: a.summaries() + 1, Text: a.summaryText(res.Text(), c)}
	answer.Summary = s
	if err := a.log.Append(ctx, &runv1.Event{StepIndex: int32(index), Body: &runv1.Event_Compaction{
		Compaction: &runv1.Compaction{Messages: int32(s.Messages), Summary: s.Text},
	}}); err != nil {
		return err
	}
	if err := a.log.Flush(ctx); err != nil {
		return err
	}
	a.Metrics.observeAnswer(a.claim.Run.Provider, answer.Usage, answer.CostMicros)
	next := a.log.Next()
	if err := a.retryUnavailable(ctx, func() error { return a.Store.CompleteStep(ctx, a.claim, answer, next) }); err != nil {
		return err
	}
	a.session.Summary, a.session.Compact = s, false
	a.compacted++
	a.Metrics.compactions.WithLabelValues("done").Inc()
	a.Log.InfoContext(ctx, "conversation compacted", "run", a.claim.Run.ID, "step", index, "messages", s.Messages, "tokens_in", answer.Usage.Input, "tokens_out", answer.Usage.Output)
	return a.log.Append(ctx, answerComplete(&answer))
}

// summaryText returns the text of a summary as it is stored. If no message of the user is left
// after the summary, it ends with the user's last request.
func (a *answering) summaryText(text string, c *compaction) string {
	limit := min(maxSummary, int(c.window/summaryShare*4))
	text = compact.Shorten(strings.TrimSpace(text), max(limit, minTranscript))
	if compact.LastRequest(a.history[c.cut:]) != "" {
		return text
	}
	if request := compact.LastRequest(a.history[:c.cut]); request != "" {
		text += "\n\nThe user's last request, verbatim:\n" + compact.Shorten(request, min(maxRequest, max(limit, minTranscript)))
	}
	return text
}

// summaries is how many steps of the run have made a summary.
func (a *answering) summaries() int {
	if s := a.session.Summary; s != nil && s.Run == a.claim.Run.ID {
		return s.Nth
	}
	return 0
}

// isTooLong reports whether a provider has refused a prompt because of its size.
func isTooLong(err error) bool {
	failure, ok := errors.AsType[*llm.Error](err)
	return ok && (failure.Kind == llm.KindContextLength || failure.Kind == llm.KindTooLarge && failure.Status == http.StatusRequestEntityTooLarge)
}

// tooLong is the failure of a run whose conversation is too long and cannot be compacted.
func (a *answering) tooLong(err error) error {
	failure, ok := errors.AsType[*llm.Error](err)
	if !ok || a.noSummary == nil {
		return err
	}
	told := *failure
	told.Message = fmt.Sprintf("%s Its earlier part could not be summarized: %s", failure.Message, a.noSummary.Message)
	return &told
}
