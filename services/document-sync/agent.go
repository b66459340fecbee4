package documentsync

import (
	"context"
	"hash/fnv"
	"time"

	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/yjs"
	"signalbox.dev/services/document-sync/internal/store"
)

// agentShown is how long an agent is seen in a document after it has read it or written
// in it: its next call may take a model some time.
const agentShown = 20 * time.Second

// showTimeout bounds what an answer waits for that: the document may have to be loaded.
const showTimeout = 250 * time.Millisecond

// agentColors are for the carets of agents: those of people are chosen by their editors.
var agentColors = []string{"#7c3aed", "#0e7490", "#b45309", "#be185d", "#15803d", "#1d4ed8"}

// awareness is what editors show of somebody, as y-prosemirror and TipTap read it.
type awareness struct {
	User   awareUser    `json:"user"`
	Cursor *awareCursor `json:"cursor"`
}

type awareUser struct {
	Name  string `json:"name"`
	Color string `json:"color"`
	// Run tells front ends that this is an agent, and which.
	Run string `json:"run_id"`
}

type awareCursor struct {
	Anchor yjs.RelativePosition `json:"anchor"`
	Head   yjs.RelativePosition `json:"head"`
}

// show lets people see an agent in the document that it works on, with its caret where
// it wrote last. It is for the eyes: when it fails, the operation has not.
func (s *documents) show(ctx context.Context, ref store.Ref, author store.Author, caret yjs.RelativePosition) {
	if id.IsZero(author.Run) {
		return
	}
	client := agentClient(author.Run)
	state := awareness{User: awareUser{Name: "Agent", Color: agentColors[client%uint64(len(agentColors))], Run: author.Run.String()}}
	if caret != (yjs.RelativePosition{}) {
		state.Cursor = &awareCursor{caret, caret}
	}
	ctx, cancel := context.WithTimeout(ctx, showTimeout)
	defer cancel()
	if err := s.rooms.Show(ctx, ref, client, state, agentShown); err != nil {
		s.log.DebugContext(ctx, "agent not shown in a document", "document", ref.Document, "error", err)
	}
}

// agentClient returns who an agent's run is among the clients of a document: the same
// on every instance, and never 0, in the 32 bits that all clients have.
func agentClient(run id.Run) uint64 {
	h := fnv.New32a()
	h.Write(run.UUID[:]) // a hash never refuses
	return uint64(h.Sum32() | 1)
}
