package loop

import (
	"context"
	"slices"
	"time"

	toolv1 "signalbox.dev/proto/signalbox/tool/v1"
	"signalbox.dev/services/agent-runner/internal/clienttool"
	"signalbox.dev/services/agent-runner/internal/llm"
	"signalbox.dev/services/agent-runner/internal/run"
)

// tellQuestions emits the questions about a step's calls and the answers of people, unless
// viewers have them already. The answer of a client is the call's result.
func (a *answering) tellQuestions(ctx context.Context, s *run.OpenStep, told *told) error {
	for i := range s.Calls {
		c := &s.Calls[i]
		if c.Ask == nil || c.Ask.Decision == run.ByRule {
			continue
		}
		key := question{c.Ask.Question, c.ID}
		if c.Announced == run.AnnouncedNothing && !told.asked[key] {
			request := approvalRequest
			if c.Ask.Question == run.AskClient {
				request = clientRequest
			}
			if err := a.log.Append(ctx, request(s.Index, c)); err != nil {
				return err
			}
			told.asked[key] = true
		}
		if c.Ask.Question == run.AskClient {
			continue
		}
		if c.Ask.Decision != "" && c.Announced != run.AnnouncedAll && !told.answered[key] {
			if err := a.log.Append(ctx, approvalResponse(s.Index, c)); err != nil {
				return err
			}
			told.answered[key] = true
		}
	}
	return nil
}

// wait parks the run until a person or a client answers for one of its calls. It returns false
// if that has happened in the meantime, or a person has stopped the run.
func (a *answering) wait(ctx context.Context, s *run.OpenStep, outcomes outcomes, unknown []run.Call, told *told) (parked bool, err error) {
	for i := range unknown {
		key := question{run.AskOutcome, unknown[i].ID}
		if told.asked[key] {
			continue
		}
		if err := a.log.Append(ctx, approvalRequest(s.Index, &unknown[i])); err != nil {
			return false, err
		}
		told.asked[key] = true
	}
	if err := a.log.Flush(ctx); err != nil {
		return false, err
	}
	w := run.Wait{Step: s.Index, Outcomes: outcomes, Unknown: unknown, Time: time.Since(a.since), Events: a.log.Stamp(parkedFor(s.Index, waits(s.Calls, unknown)))}
	r := &a.claim.Run
	_, w.Subject = run.LogSubject(a.cfg.Partitions, r.Workspace, r.Session)
	next := w.Events[0].GetNumber()
	if err := a.retryUnavailable(ctx, func() (err error) {
		parked, err = a.Store.Wait(ctx, a.claim, w, next)
		return err
	}); err != nil {
		return false, err
	}
	if parked {
		a.Log.InfoContext(ctx, "run waits for a person or a client", "run", r.ID, "step", s.Index)
		return true, nil
	}
	inbox, err := a.Store.ReadInbox(ctx, a.claim, false)
	if err == nil && inbox.Stop {
		a.interrupt(errStopped)
	}
	return false, err
}

// waits returns the calls that wait, and those that will because their outcome is unknown.
func waits(calls, unknown []run.Call) []run.Call {
	out := slices.Clone(unknown)
	for i := range calls {
		if calls[i].Waits() {
			out = append(out, calls[i])
		}
	}
	return out
}

// ask returns a question about a call.
func (a *answering) ask(q run.Question, why string, c *run.Call, limit time.Duration) *run.Ask {
	return &run.Ask{Question: q, Why: why, Until: time.Now().Add(a.cfg.ApprovalTime), TimeLimit: limit, ArgsHash: run.HashArgs(c.Args)}
}

// askOutcome returns a call whose outcome is unknown with the question about it.
func (a *answering) askOutcome(c *run.Call, o *run.Outcome) run.Call {
	asked := *c
	asked.Outcome = o
	asked.Ask = a.ask(run.AskOutcome, "it is unknown whether this call took effect", c, c.Ask.TimeLimit)
	return asked
}

// applyRules decides which of an answer's calls a person has to approve, and refuses those that
// a rule forbids.
func (a *answering) applyRules(ctx context.Context, answer *run.Answer) error {
	calls := answer.Calls
	var names []string
	for i := range calls {
		names = append(names, calls[i].Name)
	}
	var rules []run.Rule
	if err := a.retryUnavailable(ctx, func() (err error) {
		rules, err = a.Store.Rules(ctx, a.claim, names)
		return err
	}); err != nil {
		return err
	}
	a.taint.addTools(a.tools)
	a.taint.add(a.history, a.catalogue)
	if answer.Content != nil { // the provider may have searched the web before the model made these calls
		a.taint.addMessage(string(llm.Assistant), answer.Content, a.catalogue)
	}
	for i := range calls {
		if c := &calls[i]; c.Outcome == nil {
			a.applyRulesTo(c, rules)
		}
	}
	return nil
}

func (a *answering) applyRulesTo(c *run.Call, rules []run.Rule) {
	tool := a.tool(c.Name)
	v := judge(c, tool, rules, a.taint.ask(tool))
	switch limit := a.callTime(tool); {
	case v.denied:
		c.Outcome = refused("denied", "a rule of this workspace forbids this call: go on without it")
	case clienttool.Is(tool):
		// The client asks its user: it runs the call, and may refuse it.
		if v.allowed {
			v.why = ""
		}
		c.Ask = a.ask(run.AskClient, v.why, c, limit)
	case v.why == "":
	case v.allowed:
		c.Ask = &run.Ask{Question: run.AskApproval, Why: v.why, Decision: run.ByRule, TimeLimit: limit, ArgsHash: run.HashArgs(c.Args)}
	default:
		c.Ask = a.ask(run.AskApproval, v.why, c, limit)
	}
}

// verdict is what rules say about a call.
type verdict struct {
	why             string // a person has to be asked
	denied, allowed bool
}

// judge applies the rules to a call. One that denies wins over one that allows. If the call is
// tainted, only a rule that names its arguments allows it: any other rule was made without
// knowing what a stranger would make of it.
func judge(c *run.Call, tool *toolv1.Tool, rules []run.Rule, tainted bool) verdict {
	var v verdict
	ask := tool.GetNeedsApproval()
	for i := range rules {
		ok, exact := rules[i].Matches(c.Name, c.Args)
		if !ok {
			continue
		}
		switch rules[i].Effect {
		case run.Deny:
			v.denied = true
		case run.AskBy:
			ask = true
		case run.Allow:
			v.allowed = v.allowed || exact || !tainted
		}
	}
	switch {
	case tainted:
		v.why = "the conversation has both private data and text by strangers, and this call acts outside"
	case ask:
		v.why = "calls of this tool need a person's approval"
	}
	return v
}
