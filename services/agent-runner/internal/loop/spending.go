package loop

import (
	"context"
	"errors"
	"time"

	"signalbox.dev/services/agent-runner/internal/budget"
	"signalbox.dev/services/agent-runner/internal/prompt"
	"signalbox.dev/services/agent-runner/internal/run"
)

// errParkRequested means that the run must be parked at the step border where it waits.
var errParkRequested = errors.New("the run must be parked")

const (
	// budgetRetry is how often a run looks whether steps of others have left something of a
	// budget.
	budgetRetry = 500 * time.Millisecond
	// guessedOutput is the output of a step whose preset does not limit it, in tokens.
	guessedOutput = 4096
)

// reserve reserves the next step in the budgets. While steps in progress have reserved what
// is left, it waits; it returns errParkRequested if the run must be parked meanwhile. The
// verdict has a reason if a budget is spent.
func (a *answering) reserve(ctx context.Context) (v budget.Verdict, err error) {
	if a.Budgets == nil {
		return budget.Verdict{}, nil
	}
	r := &a.claim.Run
	estimate := a.estimate()
	announced := false
	defer func() {
		a.claim.Budgeted = v.Budgeted
		if announced {
			a.since = time.Now() // the wait is no running time
		}
	}()
	for {
		err = a.retryUnavailable(ctx, func() (err error) {
			v, err = a.Budgets.Reserve(ctx, budget.Reservation{
				Workspace: r.Workspace, Session: r.Session, Run: r.ID, Epoch: r.Epoch, Member: r.CreatedBy, Estimate: estimate,
			})
			return err
		})
		if err != nil || !v.Wait {
			return v, err
		}
		if !announced {
			announced = true
			if err := a.log.Append(ctx, waiting(r.Steps, "other runs have reserved what is left of a budget", time.Now().Add(budgetRetry))); err != nil {
				return v, err
			}
		}
		if a.active.yield.Load() {
			return v, errParkRequested
		}
		timer := time.NewTimer(budgetRetry/2 + a.cfg.Jitter(budgetRetry))
		select {
		case <-timer.C:
		case <-a.draining:
			err = errParkRequested
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
		timer.Stop()
		if err != nil {
			return v, err
		}
	}
}

// worked returns how long this claim has been worked on since the last call.
func (a *answering) worked() time.Duration {
	since := a.since
	a.since = time.Now()
	return a.since.Sub(since)
}

// estimate returns what the next step may use.
func (a *answering) estimate() budget.Amount {
	u := run.Usage{Input: a.promptTokens(), Output: guessedOutput}
	if a.preset.MaxOutputTokens > 0 {
		model, _ := a.Catalogue.Lookup(a.claim.Run.Provider, a.claim.Run.Model)
		u.Output = int64(prompt.MaxOutput(a.preset, &model))
	}
	out := budget.Amount{Tokens: u.Input + u.Output}
	if cost := a.cost(u); cost != nil {
		out.CostMicros = *cost
	}
	return out
}
