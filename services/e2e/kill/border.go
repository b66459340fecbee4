package kill

import (
	"math/rand/v2"
	"time"

	"signalbox.dev/pkg/subject"

	"signalbox.dev/services/e2e/farend"
	"signalbox.dev/services/e2e/world"
)

// border is a moment at which a death is likely to lose or repeat something.
type border string

// The borders.
const (
	waitWritten     border = "waiting event written"
	approvalAsked   border = "approval asked"
	approvalPosted  border = "approval posted"
	ruleRemembered  border = "rule remembered"
	answerTold      border = "approval told"
	callSent        border = "call sent"
	effectHappened  border = "effect happened"
	outcomeRecorded border = "outcome recorded"
	outcomeAsked    border = "unknown outcome asked"
)

// borders has the services that act at each border, one of which is killed.
var borders = []struct {
	border
	services []string
}{
	{waitWritten, []string{subject.AgentRunner, world.PostgresName, world.NATSName}},
	{approvalAsked, []string{subject.AgentRunner, subject.Gateway, world.PostgresName}},
	{approvalPosted, []string{subject.AgentRunner, subject.Gateway, world.PostgresName, world.NATSName}},
	{ruleRemembered, []string{subject.AgentRunner, world.PostgresName}},
	{answerTold, []string{subject.AgentRunner, subject.ToolExecutor, world.NATSName}},
	{callSent, []string{subject.ToolExecutor, subject.AgentRunner}},
	{effectHappened, []string{subject.ToolExecutor, subject.AgentRunner, world.PostgresName}},
	{outcomeRecorded, []string{subject.ToolExecutor, subject.AgentRunner, world.NATSName}},
	{outcomeAsked, []string{subject.AgentRunner, subject.ToolExecutor, world.PostgresName}},
}

// at tells the killer that a conversation is at a border. It does not wait.
func (h *harness) at(b border) {
	select {
	case h.borders <- b:
	default: // the killer waits for none
	}
}

// atEvent is at for an event that a viewer has just seen.
func (h *harness) atEvent(kind string) {
	switch kind {
	case "waiting":
		h.at(waitWritten)
	case "tool-approval-response":
		h.at(answerTold)
	case "tool-result":
		h.at(outcomeRecorded)
	}
}

// atFarEnd is at for a request at the far end.
func (h *harness) atFarEnd(p farend.Point) {
	if p == farend.Received {
		h.at(callSent)
	} else {
		h.at(effectHappened)
	}
}

// lurk waits until a conversation reaches a border, and returns the border and the services
// that act at it, or neither after a while.
func (h *harness) lurk(rnd *rand.Rand, limit time.Duration) (border, []string) {
	target := borders[rnd.IntN(len(borders))]
	timeout := time.After(limit)
	for {
		select {
		case b := <-h.borders:
			if b == target.border {
				return b, target.services
			}
		case <-timeout:
			return "", nil
		}
	}
}
