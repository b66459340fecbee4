package kill

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"signalbox.dev/services/e2e/farend"
	"signalbox.dev/services/e2e/world"
)

// place is an event's place in its session: the run's ordinal and the event's number.
type place struct{ run, number int64 }

func (p place) String() string { return fmt.Sprintf("%d-%d", p.run, p.number) }

func parsePlace(id string) (place, bool) {
	r, n, ok := strings.Cut(id, "-")
	run, err1 := strconv.ParseInt(r, 10, 64)
	number, err2 := strconv.ParseInt(n, 10, 64)
	return place{run, number}, ok && err1 == nil && err2 == nil
}

// span is the time in which something happened.
type span struct{ from, to time.Time }

// event is an event as its first witness saw it.
type event struct {
	kind string
	data []byte
	at   time.Time
	by   string
}

// isEnd reports whether the event ends its run.
func (e *event) isEnd() bool { return e.kind == "done" || e.kind == "error" }

// sight is an event or a snapshot that a witness saw.
type sight struct {
	place
	snapshot bool
	cursor   string // of a snapshot: the event after which the witness resumed
	at       time.Time
}

// view is what a witness saw, in order.
type view struct {
	name string
	// Most witnesses watch whole sessions; a sender sees only its own run, without what the sender
	// knows already.
	run     int64
	sender  bool
	sights  []sight
	resumed int
}

// document is a document of the workspace.
type document struct{ name, content string }

// reading is a document's content at one time.
type reading struct {
	span
	name, content string
}

// transcript is the record of a session. Witnesses and the talker write
// to it under mu; when the session is over it is checked without.
type transcript struct {
	session  string
	versions bool // see Config.Versions

	mu       sync.Mutex
	events   map[place]*event
	ends     map[int64]place // of runs, as first seen
	lastSeen map[int64]time.Time
	views    []*view
	asks     []*ask
	stops    []span
	answers  []*answer
	readings []reading
	problems []problem
	slowest  time.Duration // the longest pause that a witness saw
	changed  chan struct{} // closed and replaced at each end of a run, and each snapshot

	// Read at the end, from the API.
	runs      map[string]world.Run
	messages  []world.Message
	documents []document
	// counts are what the far end counted, by the notes of the calls.
	counts map[string]farend.Operation
}

func newTranscript(session string) *transcript {
	return &transcript{
		session: session, events: map[place]*event{}, ends: map[int64]place{}, lastSeen: map[int64]time.Time{},
		runs: map[string]world.Run{}, counts: map[string]farend.Operation{}, changed: make(chan struct{}),
	}
}

// sort is the kind of invariant that a problem violates.
type sort string

const (
	lost       sort = "lost run"
	twoEnds    sort = "run with two ends"
	stuck      sort = "stuck run"
	doubled    sort = "duplicate effect"
	unapproved sort = "effect without approval"
	forgotten  sort = "approval forgotten"
	falseOK    sort = "false ok"
	hole       sort = "hole in a stream"
	twice      sort = "event twice"
	differs    sort = "viewers differ"
	repeated   sort = "submit not idempotent"
	unordered  sort = "history not linearizable"
	undecided  sort = "history too long to check"
	unclean    sort = "stream ended cleanly without an end"
	refused    sort = "request refused for good"
	late       sort = "viewer did not catch up"
)

// sorts in the order of the report.
var sorts = []sort{lost, twoEnds, stuck, doubled, unapproved, forgotten, falseOK, hole, twice, differs, repeated, unordered, undecided, unclean, refused, late}

// problem is a violated invariant.
type problem struct {
	Sort    sort   `json:"sort"`
	Session string `json:"session"`
	What    string `json:"what"`
}

// complain records a problem. mu is not held.
func (t *transcript) complain(s sort, format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.problems = append(t.problems, problem{s, t.session, fmt.Sprintf(format, args...)})
}

// witness adds a witness to the transcript.
func (t *transcript) witness(name string) *view {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := &view{name: name}
	t.views = append(t.views, s)
	return s
}

// note records an event that a witness has just seen. It returns false if the event's place is
// unknown.
func (t *transcript) note(s *view, kind, id string, data []byte, cursor string) (at place, ok bool) {
	now := time.Now()
	p, ok := parsePlace(id)
	if !ok {
		t.complain(differs, "%s saw a %s event with the id %q, which is none of ours", s.name, kind, id)
		return p, false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if kind == "snapshot" {
		s.sights = append(s.sights, sight{place: p, snapshot: true, cursor: cursor, at: now})
		t.wake()
		return p, true
	}
	s.sights = append(s.sights, sight{place: p, at: now})
	t.lastSeen[p.run] = now
	known := t.events[p]
	switch {
	case known == nil:
		known = &event{kind: kind, data: bytes.Clone(data), at: now, by: s.name}
		t.events[p] = known
	case known.kind != kind || !bytes.Equal(known.data, data) && (!t.versions || !agree(known.data, data)):
		t.problems = append(t.problems, problem{differs, t.session, fmt.Sprintf("event %s is %s %s for %s, and %s %s for %s",
			p, known.kind, known.data, known.by, kind, bytes.Clone(data), s.name)})
	}
	if known.isEnd() {
		if _, ok := t.ends[p.run]; !ok {
			t.ends[p.run] = p
		}
		t.wake()
	}
	return p, true
}

// agree reports whether one of two JSON objects has all members of the other, with the same values.
func agree(a, b []byte) bool {
	var less, more map[string]json.RawMessage
	if json.Unmarshal(a, &less) != nil || json.Unmarshal(b, &more) != nil {
		return false
	}
	if len(less) > len(more) {
		less, more = more, less
	}
	for name, value := range less {
		if !bytes.Equal(value, more[name]) {
			return false
		}
	}
	return true
}

// wake tells the talker that a run may have ended; mu is held.
func (t *transcript) wake() {
	close(t.changed)
	t.changed = make(chan struct{})
}

// covered reports whether a witness got a snapshot that covers an event; none covers the zero place.
func (t *transcript) covered(p place) bool {
	if p == (place{}) {
		return false
	}
	for _, s := range t.views {
		for _, x := range s.sights {
			if x.snapshot && !x.isBefore(p) {
				return true
			}
		}
	}
	return false
}

// field decodes a field of an event's data into a variable, which stays if there is none.
func (e *event) field(name string, into any) {
	var fields map[string]json.RawMessage
	if json.Unmarshal(e.data, &fields) == nil {
		_ = json.Unmarshal(fields[name], into) // the comparison will show an error
	}
}
