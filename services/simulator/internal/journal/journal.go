// Package journal records the received requests and how their answers ended, for tests that
// check what a provider received. It is bounded by number and by bytes, contains no
// credentials, and is safe for concurrent use.
package journal

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"strings"
	"sync"
	"time"
	"unicode/utf8"
)

const (
	maxBody  = 256 << 10 // kept of one request
	maxBytes = 16 << 20  // kept of all bodies
	maxCuts  = 1000
)

// Values of Entry.Ended.
const (
	Complete   = "complete"    // with its last event
	Refused    = "refused"     // with an error status
	Broken     = "broken"      // by a scripted fault
	ClientLeft = "client_left" // the client cut it
	Shutdown   = "shutdown"    // the simulator was closed
)

// Entry is one request. Ended is "" while the answer is being played.
type Entry struct {
	Seq       int64               `json:"seq"`
	ID        string              `json:"id"` // as in the response's request id header
	At        time.Time           `json:"at"`
	Method    string              `json:"method"`
	Path      string              `json:"path"`
	Header    map[string][]string `json:"header"`
	Body      json.RawMessage     `json:"body,omitempty"`      // if it is JSON and not too long
	BodyText  string              `json:"body_text,omitempty"` // otherwise its beginning
	BodyBytes int                 `json:"body_bytes"`          // its whole length
	Dialect   string              `json:"dialect,omitempty"`
	Model     string              `json:"model,omitempty"`
	Script    string              `json:"script,omitempty"`
	Rule      string              `json:"rule,omitempty"`
	Stream    bool                `json:"stream"`
	Status    int                 `json:"status,omitempty"`
	Ended     string              `json:"ended,omitempty"`
	EndedAt   *time.Time          `json:"ended_at,omitempty"`
	Bytes     int64               `json:"bytes"` // of the response's body

	kept    int  // bytes of the body that count towards maxBytes
	dropped bool // no longer among the entries
}

// Counts are totals since the start or the last Reset, which does not change Open.
type Counts struct {
	Version    int64 `json:"version"` // increases with every change
	Requests   int64 `json:"requests"`
	Open       int64 `json:"open"` // active answers
	Streams    int64 `json:"streams"`
	Complete   int64 `json:"complete"`
	Refused    int64 `json:"refused"`
	Broken     int64 `json:"broken"`
	ClientLeft int64 `json:"client_left"`
	Cuts       []Cut `json:"cuts"` // the last answers that the client cut
}

// Cut is an answer whose client left early.
type Cut struct {
	Seq    int64     `json:"seq"`
	ID     string    `json:"id"`
	Script string    `json:"script"`
	Model  string    `json:"model"`
	At     time.Time `json:"at"`
	Bytes  int64     `json:"bytes"`
}

// Journal is a journal of received requests.
type Journal struct {
	most    int
	now     func() time.Time
	mu      sync.Mutex // guards what follows
	seq     int64
	bytes   int
	entries []*Entry // the oldest first
	counts  Counts
	changed chan struct{} // closed and replaced with every change
}

// New returns a journal of the last most requests.
func New(most int, now func() time.Time) *Journal {
	return &Journal{most: most, now: now, changed: make(chan struct{})}
}

// Exchange is one active request. Its methods are safe for concurrent use.
type Exchange struct {
	j     *Journal
	entry *Entry
}

// Begin records a request.
func (j *Journal) Begin(r *http.Request, requestID string) *Exchange {
	e := &Entry{ID: requestID, At: j.now(), Method: r.Method, Path: r.URL.RequestURI(), Header: redact(r.Header)}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.seq++
	e.Seq = j.seq
	j.counts.Requests++
	j.counts.Open++
	j.keep(e)
	j.change()
	return &Exchange{j: j, entry: e}
}

// Body records the request's body.
func (x *Exchange) Body(b []byte) {
	x.j.mu.Lock()
	defer x.j.mu.Unlock()
	e := x.entry
	if e.dropped {
		return
	}
	e.BodyBytes = len(b)
	if len(b) <= maxBody && json.Valid(b) {
		e.Body = b
	} else {
		e.BodyText = strings.ToValidUTF8(string(b[:min(len(b), 1024)]), string(utf8.RuneError))
	}
	e.kept = len(e.Body) + len(e.BodyText)
	x.j.bytes += e.kept
	x.j.trim()
}

// Asked records what the request asks for and which script and rule answer it.
func (x *Exchange) Asked(dialect, model, script, rule string, stream bool) {
	x.j.mu.Lock()
	defer x.j.mu.Unlock()
	e := x.entry
	e.Dialect, e.Model, e.Script, e.Rule, e.Stream = dialect, model, script, rule, stream
	if stream {
		x.j.counts.Streams++
	}
	x.j.change()
}

// End records how and when the answer ended. Only the first call counts.
func (x *Exchange) End(how string, status int, n int64) {
	x.j.mu.Lock()
	defer x.j.mu.Unlock()
	e, c := x.entry, &x.j.counts
	if e.Ended != "" {
		e.Bytes, e.Status = max(e.Bytes, n), max(e.Status, status)
		return
	}
	at := x.j.now()
	e.Ended, e.EndedAt, e.Status, e.Bytes = how, &at, status, n
	c.Open--
	switch how {
	case Complete:
		c.Complete++
	case Refused:
		c.Refused++
	case Broken:
		c.Broken++
	case ClientLeft:
		c.ClientLeft++
		c.Cuts = append(c.Cuts, Cut{Seq: e.Seq, ID: e.ID, Script: e.Script, Model: e.Model, At: at, Bytes: n})
		if len(c.Cuts) > maxCuts {
			c.Cuts = append([]Cut(nil), c.Cuts[len(c.Cuts)-maxCuts:]...)
		}
	}
	x.j.change()
}

// Requests returns the last requests of a script, or of all for "", the newest last. A
// positive limit bounds their number.
func (j *Journal) Requests(script string, limit int) []Entry {
	j.mu.Lock()
	defer j.mu.Unlock()
	out := []Entry{}
	for _, e := range j.entries {
		if script == "" || e.Script == script {
			out = append(out, *e)
		}
	}
	if limit > 0 && len(out) > limit {
		out = out[len(out)-limit:]
	}
	return out
}

// Counts returns the totals.
func (j *Journal) Counts() Counts {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.copyCounts()
}

// Wait returns the totals as soon as their version exceeds since, or when ctx ends.
func (j *Journal) Wait(ctx context.Context, since int64) Counts {
	for {
		j.mu.Lock()
		c, changed := j.copyCounts(), j.changed
		j.mu.Unlock()
		if c.Version > since {
			return c
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return c
		}
	}
}

// Reset deletes the requests of a script, or with "" all requests and the totals.
func (j *Journal) Reset(script string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	kept := j.entries[:0:0]
	for _, e := range j.entries {
		if script != "" && e.Script != script {
			kept = append(kept, e)
			continue
		}
		j.drop(e)
	}
	j.entries = kept
	if script == "" {
		j.counts = Counts{Version: j.counts.Version, Open: j.counts.Open}
	}
	j.change()
}

func (j *Journal) copyCounts() Counts {
	c := j.counts
	c.Cuts = append([]Cut{}, c.Cuts...)
	return c
}

// keep adds an entry and drops the oldest beyond the bound. The caller holds mu.
func (j *Journal) keep(e *Entry) {
	j.entries = append(j.entries, e)
	if n := len(j.entries) - j.most; n > 0 {
		for _, old := range j.entries[:n] {
			j.drop(old)
		}
		j.entries = append(j.entries[:0:0], j.entries[n:]...)
	}
}

// drop removes an entry from the byte count. The caller holds mu.
func (j *Journal) drop(e *Entry) {
	j.bytes -= e.kept
	e.kept, e.dropped = 0, true
}

// trim drops the oldest bodies beyond the bound. The caller holds mu.
func (j *Journal) trim() {
	for _, e := range j.entries {
		if j.bytes <= maxBytes {
			return
		}
		j.bytes -= e.kept
		e.kept, e.Body, e.BodyText = 0, nil, ""
	}
}

// change wakes the callers of Wait. The caller holds mu.
func (j *Journal) change() {
	j.counts.Version++
	close(j.changed)
	j.changed = make(chan struct{})
}

// redact returns a copy of a header in which a hash replaces each credential, so that tests
// can tell credentials apart.
func redact(h http.Header) map[string][]string {
	out := make(map[string][]string, len(h))
	for name, values := range h {
		for _, v := range values {
			switch name {
			case "Authorization", "X-Api-Key", "Cookie", "Proxy-Authorization":
				v = HashCredential(v)
			}
			out[name] = append(out[name], v)
		}
	}
	return out
}

// HashCredential returns the journal's form of a credential: a scheme such as Bearer, and the
// hash of the rest.
func HashCredential(v string) string {
	scheme := ""
	if before, after, ok := strings.Cut(v, " "); ok {
		scheme, v = before+" ", after
	}
	sum := sha256.Sum256([]byte(v))
	return scheme + "sha256:" + hex.EncodeToString(sum[:8])
}
