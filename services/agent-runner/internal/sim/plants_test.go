package sim

import "testing"

// plant is a bug that is planted into the models on purpose, like a bug in the code behind the
// interfaces.
type plant string

const (
	none            plant = ""
	noFence         plant = "writes are not fenced"
	sameEpoch       plant = "a claim keeps the epoch"
	claimsHeld      plant = "sweeper and claims ignore leases"
	claimsBlocked   plant = "sweeper and claims ignore the session's other runs"
	claimsEarly     plant = "a claim does not wait until the end before it is told"
	commitsOnce     plant = "a commit cannot be repeated"
	dispatchesFirst plant = "calls are dispatched whatever becomes of their commit"
	forgetsStops    plant = "a stop is forgotten once it was read"
	forgetsKeys     plant = "idempotency keys are ignored"
	leavesQueued    plant = "nobody wakes the next run"
	sweepsNothing   plant = "the sweeper finds nothing"
	deletesFirst    plant = "the outbox deletes before it publishes"
	logsUnfenced    plant = "the log does not fence"
	acksUnstored    plant = "the log acknowledges before it has stored"
	runsTwice       plant = "executors have no ledger"
	wakesEarly      plant = "the end is told before it is committed"
	waitsDeaf       plant = "a run that parks does not look for answers"
	forgetsAnswers  plant = "an answer does not resume the run"
	asksForever     plant = "approvals do not expire"
	resumesFull     plant = "an answer resumes a run of a workspace that is at its limit"
	switchesAnyway  plant = "branches are switched while a run is active or queued"
	losesSummaries  plant = "a step that makes a summary is committed without it"
	plansNothing    plant = "calls that need approval are dispatched"
	losesResults    plant = "a client's result is taken and not stored"
	changesResults  plant = "a client's result is replaced by another"
)

// TestPlantsAreFound plants one bug at a time and checks that some world finds it.
func TestPlantsAreFound(t *testing.T) {
	t.Parallel()
	if raced || testing.Short() {
		t.Skip("thousands of worlds, and nothing for the race detector that TestSeeds has not")
	}
	const seeds = 2000
	k := newKit(t)
	for _, planted := range []plant{
		noFence, sameEpoch, claimsHeld, claimsBlocked, claimsEarly, commitsOnce, dispatchesFirst, forgetsStops, forgetsKeys,
		leavesQueued, sweepsNothing, deletesFirst, logsUnfenced, acksUnstored, runsTwice, wakesEarly, waitsDeaf, forgetsAnswers, asksForever, plansNothing,
		losesResults, changesResults, losesSummaries, resumesFull, switchesAnyway,
	} {
		t.Run(string(planted), func(t *testing.T) {
			t.Parallel()
			for seed := uint64(1); seed <= seeds; seed++ {
				if wrong := live(t, k, seed, planted, nil).wrong; len(wrong) > 0 {
					t.Logf("%s: found by seed %d: %s", planted, seed, wrong[0])
					return
				}
			}
			t.Errorf("%s: %d worlds do not show it", planted, seeds)
		})
	}
}
