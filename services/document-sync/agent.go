package documentsync

import (
	"context"
	"hash/fnv"
	"time"

	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/yjs"
	"signalbox.dev/services/document-sync/internal/store"
)

// agentShown is how long an agent stays visible in a document after it has read or edited
// it: its next call may have to wait for a model.
const agentShown = 20 * time.Second

// showTimeout bounds how long an operation waits for Show, which may load the document.
const showTimeout = 250 * time.Millisecond

// agentColors are the caret colours of agents. People's editors choose their own.
var agentColors = []string{"#7c3aed", "#0e7490", "#b45309", "#be185d", "#15803d", "#1d4ed8"}

// awareness is the awareness state that y-prosemirror and TipTap show.
type awareness struct {
	User   awareUser    `json:"user"`
	Cursor *awareCursor `json:"cursor"`
}

type awareUser struct {
	Name  string `json:"name"`
	Color string `json:"color"`
	// Run marks the user as an agent for front ends.
	Run string `json:"run_id"`
}

type awareCursor struct {
	Anchor yjs.RelativePosition `json:"anchor"`
	Head   yjs.RelativePosition `json:"head"`
}

// show makes an agent visible in the document it works on, with its caret at its last edit.
// A failure does not affect the operation.
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

// agentClient returns the Yjs client id of an agent's run: 32 bits, never 0, and the same on
// every instance.
func agentClient(run id.Run) uint64 {
	h := fnv.New32a()
	h.Write(run.UUID[:])
	return uint64(h.Sum32() | 1)
}
