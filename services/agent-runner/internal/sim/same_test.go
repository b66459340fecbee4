package sim

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/pg"
	"signalbox.dev/pkg/pgtest"
	agentv1 "signalbox.dev/proto/signalbox/agent/v1"
	runv1 "signalbox.dev/proto/signalbox/run/v1"
	toolv1 "signalbox.dev/proto/signalbox/tool/v1"
	"signalbox.dev/services/agent-runner/internal/conversation"
	"signalbox.dev/services/agent-runner/internal/outbox"
	"signalbox.dev/services/agent-runner/internal/provider"
	"signalbox.dev/services/agent-runner/internal/run"
	"signalbox.dev/services/agent-runner/migrations"
)

// TestRowsArePostgres does the same random operations on rows and on the stores with a real
// Postgres. It compares every result and, after every few operations, all tables, except for
// ids and times.
func TestRowsArePostgres(t *testing.T) {
	t.Parallel()
	sequences := uint64(100)
	if testing.Short() || raced {
		sequences = 10
	}
	k := newKit(t)
	each(t, 1, 2, func(t *testing.T, worker uint64) bool {
		b := newBoth(t, k, fmt.Sprint("worker ", worker), int(worker-1)) // one has no limit of runs, the other has
		for seed := worker; seed <= sequences && !t.Failed(); seed += 2 {
			b.sequence(seed)
		}
		return true
	})
}

// both has the two sides.
type both struct {
	t     *testing.T
	kit   *kit
	cfg   run.Config // its leases never run out by themselves: time does not pass here
	admin *pgx.Conn

	// The runners: both sides know them by these names. Only the first is present.
	runners []string
	runs    map[string]*run.Store
	people  *conversation.Store

	// Of one sequence:
	seed      uint64
	rng       *rand.Rand
	now       time.Time
	rows      *rows
	actor     [2]identity.Actor // here, and in Postgres
	names     [2]*strings.Replacer
	known     [2][]string // ids and their names, by turns
	spaces    []pair[id.Session]
	cancelled []pair[id.Run]
	messages  []pair[id.Message] // of users
	claims    []pair[*run.Claim]
	keys      int
	summaries int
}

// pair is a value of the model and the corresponding one of Postgres.
type pair[T any] struct{ here, there T }

// anyModel accepts every model.
type anyModel struct{}

func (anyModel) Choose(_ context.Context, w provider.Request) (name, model string, err error) {
	return w.Provider, w.Model, nil
}

func newBoth(t *testing.T, k *kit, name string, perWorkspace int) *both {
	t.Helper()
	schema := pg.Migrations{Schema: "agent", Role: "signalbox_agent", FS: migrations.FS}
	database := pgtest.New(t, schema)
	db, log := database.Open(t, schema), slog.New(slog.DiscardHandler)
	b := &both{t: t, kit: k, cfg: run.Config{Lease: time.Hour, WallTime: time.Hour, Partitions: partitions, PerWorkspace: perWorkspace}, runs: map[string]*run.Store{}, runners: []string{name + " present", name + " absent"}}
	out := outbox.New(db, nil, log)
	for _, r := range b.runners {
		b.runs[r] = run.NewStore(db, out, r, b.cfg)
	}
	b.people = conversation.NewStore(db, out, k.presets, conversation.Config{Models: anyModel{}, Partitions: partitions, MaxBytes: 1 << 20, MaxQueued: 2})
	var err error
	if b.admin, err = pgx.Connect(t.Context(), database.AdminURL); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.admin.Close(context.WithoutCancel(t.Context())) })
	b.exec(`SET search_path = agent`)

	present := pg.NewPresence(db, b.runners[0], log)
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- present.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Errorf("presence: %v", err)
		}
	})
	for present.Steady() == 0 {
		select {
		case err := <-ended:
			t.Fatal(err)
		case <-time.After(5 * time.Millisecond):
		}
	}
	return b
}

func (b *both) exec(sql string, args ...any) {
	b.t.Helper()
	if _, err := b.admin.Exec(b.t.Context(), sql, args...); err != nil {
		b.t.Fatalf("seed %d: %s: %v", b.seed, sql, err)
	}
}

// sequence runs one random sequence of operations.
func (b *both) sequence(seed uint64) {
	b.seed, b.rng, b.now = seed, rand.New(rand.NewPCG(seed, 7)), time.Now()
	b.known, b.names = [2][]string{}, [2]*strings.Replacer{}
	b.cancelled, b.messages, b.claims, b.spaces = nil, nil, nil, nil
	b.rows = newRows(rowsConfig{run: b.cfg, maxQueued: 2, salt: uint32(seed), now: func() time.Time {
		b.now = b.now.Add(time.Microsecond)
		return b.now
	}})
	b.exec(`TRUNCATE sessions, messages, runs, steps, tool_calls, run_inbox, usage, outbox CASCADE`)
	for i := range b.actor {
		b.actor[i] = identity.Actor{Workspace: id.New[id.Workspace](), Member: id.New[id.Member](), Role: identity.Editor}
		b.known[i] = append(b.known[i], b.actor[i].Workspace.String(), "workspace", b.actor[i].Member.String(), "member")
	}
	for range 2 {
		b.newSession()
	}
	var did []string
	for i := range 96 {
		act := acts[b.rng.IntN(len(acts))]
		if i < 16 {
			act = growing[b.rng.IntN(len(growing))]
		}
		here, there := act.do(b)
		did = append(did, act.name)
		if diff := cmp.Diff(b.plain(0, here), b.plain(1, there)); diff != "" {
			b.t.Errorf("seed %d: %s answers differently after %v; here (-), in Postgres (+):\n%s", seed, act.name, did, diff)
			return
		}
		if i%8 != 7 {
			continue
		}
		if diff := cmp.Diff(b.plain(0, b.dumpModel()), b.plain(1, b.dumpPostgres())); diff != "" {
			b.t.Errorf("seed %d: the tables differ after %v; here (-), in Postgres (+):\n%s", seed, did, diff)
			return
		}
	}
}

var someID = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`)

// plain replaces ids that both sides know by names, and all other ids by one placeholder.
func (b *both) plain(side int, lines []string) []string {
	names := strings.NewReplacer(b.known[side]...)
	var out []string
	for _, l := range lines {
		out = append(out, someID.ReplaceAllString(names.Replace(l), "some id"))
	}
	return out
}

func (b *both) newSession() {
	steps := 3
	here := b.rows.createSession(b.actor[0], steps)
	s, err := b.people.Create(b.t.Context(), b.actor[1], &agentv1.CreateSessionRequest{Title: "t", Provider: providerName, Model: modelName, MaxSteps: int32(steps)})
	if err != nil {
		b.t.Fatal(err)
	}
	b.spaces = append(b.spaces, pair[id.Session]{here, s.ID})
	b.name(here, s.ID, "session")
}

// name assigns a name to a pair of ids.
func (b *both) name(here, there fmt.Stringer, kind string) {
	name := fmt.Sprint(kind, " ", len(b.known[0]))
	b.known[0] = append(b.known[0], here.String(), name)
	b.known[1] = append(b.known[1], there.String(), name)
}

// why returns a name for an error.
func why(err error) string {
	for _, e := range []error{run.ErrFenced, run.ErrNotClaimable, run.ErrTooEarly, run.ErrMoreToDo} {
		if errors.Is(err, e) {
			return e.Error()
		}
	}
	switch f, ok := errors.AsType[*fault.Error](err); {
	case err == nil:
		return "ok"
	case ok:
		return f.Kind.String() + " " + f.Code
	}
	return "some error"
}

// act is an operation on both sides, which returns the results.
type act struct {
	name string
	do   func(b *both) (here, there []string)
}

// growing are the first operations of a sequence, which make a tree of messages.
var growing = []act{
	{"submit", (*both).submit},
	{"answer", (*both).answer},
	{"answer", (*both).answer},
	{"branch", (*both).branch},
	{"switch", (*both).switchBranch},
	{"read the conversation", (*both).history},
}

var acts = []act{
	{"submit", (*both).submit},
	{"submit", (*both).submit},
	{"submit", (*both).submit},
	{"branch", (*both).branch},
	{"branch", (*both).branch},
	{"switch", (*both).switchBranch},
	{"cancel", (*both).cancel},
	{"claim", (*both).claim},
	{"claim", (*both).claim},
	{"claim", (*both).claim},
	{"claim", (*both).claim},
	{"renew", (*both).renew},
	{"park", (*both).park},
	{"release", (*both).release},
	{"disown", (*both).releaseUnconfirmed},
	{"look into the inbox", (*both).inbox},
	{"look into the inbox", (*both).inbox},
	{"join", (*both).join},
	{"commit an answer", (*both).commitAnswer},
	{"commit an answer", (*both).commitAnswer},
	{"commit an answer", (*both).commitAnswer},
	{"commit results", (*both).commitResults},
	{"commit results", (*both).commitResults},
	{"wait for a person", (*both).wait},
	{"wait for a person", (*both).wait},
	{"wait for a person", (*both).wait},
	{"decide", (*both).decide},
	{"decide", (*both).decide},
	{"decide", (*both).decide},
	{"send a result", (*both).sendResult},
	{"send a result", (*both).sendResult},
	{"expire approvals", (*both).expireApprovals},
	{"complete a step", (*both).completeStep},
	{"complete a step", (*both).completeStep},
	{"note waste", (*both).waste},
	{"finish", (*both).finish},
	{"finish", (*both).finish},
	{"read the conversation", (*both).history},
	{"read the last step", (*both).lastStep},
	{"let a lease run out", (*both).runOut},
	{"expire", (*both).expire},
	{"sweep", (*both).sweep},
	{"look who is ready", (*both).ready},
	{"look whose turn it is", (*both).next},
	{"look whose turn it is", (*both).next},
	{"empty the outbox", (*both).say},
	{"empty the outbox", (*both).say},
	{"empty the outbox", (*both).say},
	{"delete a session", (*both).deleteSession},
}

func (b *both) submit() (here, there []string) {
	s := b.spaces[b.rng.IntN(len(b.spaces))]
	if b.rng.IntN(4) > 0 {
		b.keys++
	}
	n := conversation.NewMessage{
		Session: s.here, IdempotencyKey: fmt.Sprint("key ", b.keys), Mode: conversation.Mode(b.rng.IntN(3)),
		Content: quoted(fmt.Sprint("message ", b.keys)),
	}
	if b.rng.IntN(10) == 0 {
		n.Content = quoted("another message")
	}
	return b.send(s, n, n)
}

// send submits a message, which names others differently here and there.
func (b *both) send(s pair[id.Session], n, there conversation.NewMessage) (_, _ []string) {
	branches := n.Edit != nil || n.Regenerate != nil
	runner, handlerFor := b.runners[b.rng.IntN(len(b.runners))], b.rng.IntN(2) == 0 && !branches
	var (
		claim   *run.Claim
		refused error
	)
	one, err1 := b.rows.submit(b.actor[0], n)
	if handlerFor && err1 == nil && one.First {
		claim, refused = b.rows.claim(runner, b.actor[0].Workspace, s.here, one.Run.ID)
	}
	there.Session = s.there
	if handlerFor {
		there.PreClaim = b.runs[runner].PreClaim(b.actor[1].Workspace, s.there)
	}
	two, err2 := b.people.Submit(b.t.Context(), b.actor[1], there)
	if err1 == nil && err2 == nil && one.Created {
		if n.Regenerate == nil {
			b.name(one.Message, two.Message, "message")
			b.messages = append(b.messages, pair[id.Message]{one.Message, two.Message})
		}
		if !one.Steered {
			b.name(one.Run.ID, two.Run.ID, "run")
			b.cancelled = append(b.cancelled, pair[id.Run]{one.Run.ID, two.Run.ID})
		}
	}
	got1, got2 := submitted(one, err1), submitted(two, err2)
	taken := there.PreClaim.Claim()
	if claim != nil && taken != nil {
		b.claims = append(b.claims, pair[*run.Claim]{claim, taken})
		return append(got1, runLine(&claim.Run)), append(got2, runLine(&taken.Run))
	}
	if claim != nil || taken != nil || refused != nil && !errors.Is(refused, run.ErrTooEarly) && b.cfg.PerWorkspace == 0 {
		return append(got1, fmt.Sprint("claim ", claim, why(refused))), append(got2, fmt.Sprint("claim ", taken))
	}
	return got1, got2
}

func submitted(s *conversation.Submitted, err error) []string {
	if err != nil {
		return []string{why(err)}
	}
	return []string{fmt.Sprintf("%s in %s, created %v, steers %v, is first %v", s.Message, runLine(&s.Run), s.Created, s.Steered, s.First)}
}

func runLine(r *run.Run) string {
	return fmt.Sprintf("%s %d of %s %s: asked %s by %s as %s, %s %s, epoch %d, fruitless %d, event %d, steps %d, used %v, %q %q %q %q, begun %v, to end %v, ended %v",
		r.ID, r.Ordinal, r.Session, r.State, r.UserMessage, r.CreatedBy, r.Role, r.Provider, r.Model, r.Epoch, r.Fruitless, r.LastEvent,
		r.Steps, r.Usage(), r.Text, r.FinishReason, r.ErrorMessage, r.ErrorCode, r.StartedAt != nil, r.Deadline != nil, r.EndedAt != nil)
}

func (b *both) cancel() (here, there []string) {
	s := b.spaces[b.rng.IntN(len(b.spaces))]
	var only pair[id.Run]
	if len(b.cancelled) > 0 && b.rng.IntN(2) == 0 {
		only = b.cancelled[b.rng.IntN(len(b.cancelled))]
	}
	all := b.rng.IntN(2) == 0
	told1, running1, err1 := b.rows.cancel(b.actor[0], s.here, conversation.Target{Only: only.here, All: all})
	told2, running2, err2 := b.people.Cancel(b.t.Context(), b.actor[1], s.there, conversation.Target{Only: only.there, All: all})
	return []string{fmt.Sprint(told1, running1), why(err1)}, []string{fmt.Sprint(told2, running2), why(err2)}
}

func (b *both) aRun() (r pair[id.Run], s pair[id.Session], ok bool) {
	if len(b.cancelled) == 0 {
		return r, s, false
	}
	r = b.cancelled[b.rng.IntN(len(b.cancelled))]
	s = b.spaces[b.rng.IntN(len(b.spaces))]
	for _, own := range b.spaces {
		if row := b.rows.runs[r.here]; row != nil && row.Session == own.here && b.rng.IntN(8) > 0 {
			s = own
		}
	}
	return r, s, true
}

func (b *both) claim() (here, there []string) {
	r, s, ok := b.aRun()
	if !ok {
		return nil, nil
	}
	runner := b.runners[b.rng.IntN(len(b.runners))]
	one, err1 := b.rows.claim(runner, b.actor[0].Workspace, s.here, r.here)
	two, err2 := b.runs[runner].Claim(b.t.Context(), b.actor[1].Workspace, s.there, r.there)
	if err1 != nil || err2 != nil {
		return []string{why(err1)}, []string{why(err2)}
	}
	b.claims = append(b.claims, pair[*run.Claim]{one, two})
	return []string{runLine(&one.Run), fmt.Sprint(one.First)}, []string{runLine(&two.Run), fmt.Sprint(two.First)}
}

// aClaim returns one of the claims, mostly the newest.
func (b *both) aClaim() (c pair[*run.Claim], ok bool) {
	if len(b.claims) == 0 {
		return c, false
	}
	if b.rng.IntN(3) > 0 {
		return b.claims[len(b.claims)-1], true
	}
	return b.claims[b.rng.IntN(len(b.claims))], true
}

// store is a run store on Postgres; any runner's will do.
func (b *both) store() *run.Store { return b.runs[b.runners[0]] }

func (b *both) renew() (here, there []string) {
	var one, two []run.Lease
	for _, c := range b.claims {
		one, two = append(one, c.here.Lease()), append(two, c.there.Lease())
	}
	got1 := b.rows.renew(one)
	got2, err := b.store().Renew(b.t.Context(), two)
	return beats(got1, nil), beats(got2, err)
}

func beats(all []run.Renewal, err error) []string {
	out := []string{why(err)}
	for _, x := range all {
		out = append(out, fmt.Sprint(x.Run, x.Unread, x.Yield))
	}
	// Postgres returns any order; the ids of both sides sort by creation time.
	slices.Sort(out)
	return out
}

func (b *both) inbox() (here, there []string) {
	c, ok := b.aClaim()
	if !ok {
		return nil, nil
	}
	border := b.rng.IntN(2) == 0
	stop, steering, err := b.rows.readInbox(c.here)
	one := run.Inbox{Stop: stop}
	if err == nil && !stop && steering && border {
		one.Joined, err = b.rows.joinSteering(c.here)
	}
	two, err2 := b.store().ReadInbox(b.t.Context(), c.there, border)
	return append(messageLines(one.Joined), fmt.Sprint(one.Stop), why(err)), append(messageLines(two.Joined), fmt.Sprint(two.Stop), why(err2))
}

func (b *both) join() (here, there []string) {
	c, ok := b.aClaim()
	if !ok {
		return nil, nil
	}
	one, err1 := b.rows.joinSteering(c.here)
	two, err2 := b.store().JoinSteering(b.t.Context(), c.there)
	return append(messageLines(one), why(err1)), append(messageLines(two), why(err2))
}

func messageLines(messages []run.Message) []string {
	var out []string
	for _, m := range messages {
		out = append(out, messageLine(&m))
	}
	return out
}

func messageLine(m *run.Message) string {
	return fmt.Sprintf("%s of %s, step %s, by %s: %s, %s %q, interrupted %v, %s %s %q",
		m.ID, m.Run, orNothing(m.StepIndex), m.Role, m.Content, orNothing(m.RawDialect), m.Raw, m.Interrupted, orNothing(m.TokensIn), orNothing(m.TokensOut), m.Model)
}

func orNothing[T any](v *T) string {
	if v == nil {
		return "nothing"
	}
	return fmt.Sprint(*v)
}

// anAnswer returns an answer for both sides: of the next step, or of one that is answered.
func (b *both) anAnswer(c *run.Claim) run.Answer {
	a := run.Answer{
		ID: id.New[id.Message](), Step: c.Run.Steps, RawDialect: "anthropic", Raw: []byte("[]"), Model: "m", ResponseID: "r", FinishReason: "stop",
		Usage: run.Usage{Input: int64(b.rng.IntN(9)), Output: int64(b.rng.IntN(9)), CacheRead: 1, Estimated: b.rng.IntN(4) == 0},
	}
	if b.rng.IntN(6) == 0 && a.Step > 0 {
		a.Step--
	}
	if b.rng.IntN(5) > 0 {
		a.Content = json.RawMessage(fmt.Sprintf(`[{"type":"text","text":"answer %d"}]`, b.rng.IntN(1000)))
	}
	return a
}

func (b *both) calls(a *run.Answer) {
	for i := range 1 + b.rng.IntN(2) {
		call := run.Call{
			Key: id.New[id.Operation](), Index: i, ID: fmt.Sprint("call ", i), Name: "keyed", Args: json.RawMessage("{}"),
			Effect: toolv1.Effect_EFFECT_KEYED, Deadline: time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC),
		}
		switch b.rng.IntN(5) {
		case 0:
			call.Ask = b.ask(run.AskApproval)
		case 4:
			call.Ask = b.ask(run.AskClient)
		case 1:
			call.Outcome = &run.Outcome{State: toolv1.OutcomeState_OUTCOME_STATE_ERROR, Result: json.RawMessage(`{"error":"no"}`), ErrorType: "no"}
		}
		a.Calls = append(a.Calls, call)
		b.name(call.Key, call.Key, "call")
	}
}

// ask returns a question that has expired, or never will here.
func (b *both) ask(q run.Question) *run.Ask {
	ask := &run.Ask{Question: q, Why: "why", Until: time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC), TimeLimit: time.Minute}
	if b.rng.IntN(4) == 0 {
		ask.Until = time.Date(2000, 1, 1, 0, 0, b.rng.IntN(1000), 0, time.UTC)
	}
	return ask
}

func (b *both) wait() (here, there []string) {
	c, ok := b.aClaim()
	if !ok {
		return nil, nil
	}
	last := b.rows.lastStep(c.here)
	if last == nil || last.State != "answered" {
		return nil, nil
	}
	w := run.Wait{Step: last.Index, Outcomes: map[id.Operation]*run.Outcome{}}
	for _, call := range last.Calls {
		switch {
		case call.Waits() || b.rng.IntN(10) == 0:
		case call.Outcome == nil && b.rng.IntN(2) == 0:
			call.Outcome = &run.Outcome{State: toolv1.OutcomeState_OUTCOME_STATE_UNKNOWN, Result: json.RawMessage(`{"error":"unknown"}`), ErrorType: "unknown"}
			call.Ask = b.ask(run.AskOutcome)
			w.Unknown = append(w.Unknown, call)
		case call.Outcome == nil:
			w.Outcomes[call.Key] = &run.Outcome{State: toolv1.OutcomeState_OUTCOME_STATE_OK, Result: json.RawMessage(`{"result":1}`)}
		default:
			w.Outcomes[call.Key] = call.Outcome
		}
	}
	event := c.here.Run.LastEvent + 1
	parked1, err1 := b.rows.wait(c.here, w, event)
	if err1 == nil && parked1 {
		c.here.Run.LastEvent = event
	}
	parked2, err2 := b.store().Wait(b.t.Context(), c.there, w, event)
	return []string{why(err1), fmt.Sprint(parked1)}, []string{why(err2), fmt.Sprint(parked2)}
}

func (b *both) decide() (here, there []string) {
	s := b.spaces[b.rng.IntN(len(b.spaces))]
	choice := [...]run.Decision{run.Approved, run.Refused, run.Happened, run.Repeat}
	in := conversation.Answer{Session: s.here, ToolCallID: fmt.Sprint("call ", b.rng.IntN(2)), Decision: choice[b.rng.IntN(4)]}
	if b.rng.IntN(2) == 0 {
		in.Reason = "so"
	}
	got1, err1 := b.rows.decide(b.actor[0], in)
	in.Session = s.there
	got2, err2 := b.people.Decide(b.t.Context(), b.actor[1], in)
	if err2 != nil {
		got2 = &conversation.Approval{}
	}
	return []string{string(got1), why(err1)}, []string{string(got2.Decision), why(err2)}
}

func (b *both) sendResult() (here, there []string) {
	s := b.spaces[b.rng.IntN(len(b.spaces))]
	in := conversation.ClientResult{Session: s.here, ToolCallID: fmt.Sprint("call ", b.rng.IntN(2)), Output: json.RawMessage(fmt.Sprint(b.rng.IntN(2)))}
	if b.rng.IntN(3) == 0 {
		in.Output, in.Error = nil, "no"
	}
	err1 := b.rows.sendResult(b.actor[0], in)
	in.Session = s.there
	_, _, err2 := b.people.SendResult(b.t.Context(), b.actor[1], in)
	return []string{why(err1)}, []string{why(err2)}
}

func (b *both) expireApprovals() (here, there []string) {
	n, err := b.store().ExpireApprovals(b.t.Context(), 100)
	return []string{fmt.Sprint(b.rows.expireApprovals(100)), why(nil)}, []string{fmt.Sprint(n), why(err)}
}

func (b *both) commitAnswer() (here, there []string) {
	c, ok := b.aClaim()
	if !ok {
		return nil, nil
	}
	a := b.anAnswer(c.here)
	b.calls(&a)
	event := c.here.Run.LastEvent + 1 + int64(b.rng.IntN(5))
	var err1, err2 error
	for range 1 + b.rng.IntN(2) { // the second time is harmless
		if err1 = b.rows.commitAnswer(c.here, a, event); err1 == nil {
			c.here.Run.LastEvent = event
		}
		err2 = b.store().CommitAnswer(b.t.Context(), c.there, a, event)
	}
	return []string{why(err1)}, []string{why(err2)}
}

func (b *both) commitResults() (here, there []string) {
	c, ok := b.aClaim()
	if !ok {
		return nil, nil
	}
	last := b.rows.lastStep(c.here)
	if last == nil || len(last.Calls) == 0 {
		return nil, nil
	}
	r := run.Results{Step: last.Index, Content: json.RawMessage(`[]`), Outcomes: map[id.Operation]*run.Outcome{}}
	for i, call := range last.Calls {
		r.Outcomes[call.Key] = &run.Outcome{State: toolv1.OutcomeState_OUTCOME_STATE_OK, Result: json.RawMessage(fmt.Sprintf(`{"result":%d}`, i)), Summary: "s", DurationMS: 5}
	}
	event := c.here.Run.LastEvent + 1
	mail1, err1 := b.rows.commitResults(c.here, r, event)
	if err1 == nil {
		c.here.Run.LastEvent, c.here.Run.Steps = event, r.Step+1
	}
	mail2, err2 := b.store().CommitResults(b.t.Context(), c.there, r, event)
	return []string{why(err1), fmt.Sprint(mail1)}, []string{why(err2), fmt.Sprint(mail2)}
}

func (b *both) completeStep() (here, there []string) {
	c, ok := b.aClaim()
	if !ok {
		return nil, nil
	}
	return b.completeStepOf(c)
}

func (b *both) completeStepOf(c pair[*run.Claim]) (here, there []string) {
	a, event := b.anAnswer(c.here), c.here.Run.LastEvent+2
	if b.rng.IntN(3) == 0 {
		b.summaries++
		a.Content, a.Summary = nil, &run.Summary{Messages: b.summaries, Known: b.summaries + 1, Nth: 1 + b.rng.IntN(2), Text: fmt.Sprint("summary ", b.summaries)}
	}
	err1 := b.rows.completeStep(c.here, a, event)
	if err1 == nil {
		c.here.Run.LastEvent, c.here.Run.Steps = event, a.Step+1
	}
	return []string{why(err1)}, []string{why(b.store().CompleteStep(b.t.Context(), c.there, a, event))}
}

func (b *both) waste() (here, there []string) {
	c, ok := b.aClaim()
	if !ok {
		return nil, nil
	}
	u := run.Usage{Input: 3, Output: 4, Reasoning: 5, CacheWrite: 6, Estimated: b.rng.IntN(2) == 0}
	return []string{why(b.rows.addWaste(c.here, c.here.Run.Steps, u))}, []string{why(b.store().AddWaste(b.t.Context(), c.there, c.here.Run.Steps, u, nil))}
}

func (b *both) finish() (here, there []string) {
	c, ok := b.aClaim()
	if !ok {
		return nil, nil
	}
	return b.finishOf(c)
}

func (b *both) finishOf(c pair[*run.Claim]) (here, there []string) {
	e := run.End{State: run.Done, Text: "t", FinishReason: "stop", UnlessSteered: b.rng.IntN(2) == 0}
	switch b.rng.IntN(4) {
	case 0:
		e.State, e.ErrorMessage, e.ErrorCode = run.Failed, "m", "C"
	case 1:
		a := b.anAnswer(c.here)
		e.Answer = &a
	case 2:
		a := b.anAnswer(c.here)
		a.Interrupted = true
		e.State, e.FinishReason, e.Answer = run.Cancelled, "cancelled", &a
	}
	end := func(c *run.Claim) run.End {
		e := e
		_, e.Subject = run.LogSubject(partitions, c.Run.Workspace, c.Run.Session)
		e.Events = []*runv1.Event{
			{RunId: c.Run.ID.String(), Number: 7, Body: &runv1.Event_StepComplete{StepComplete: &runv1.StepComplete{}}},
			{RunId: c.Run.ID.String(), Number: 8, Body: &runv1.Event_Done{Done: &runv1.Done{Text: "t"}}},
		}
		return e
	}
	return []string{why(b.rows.finish(c.here, end(c.here)))}, []string{why(b.store().Finish(b.t.Context(), c.there, end(c.there)))}
}

func (b *both) history() (here, there []string) {
	r, s, ok := b.aRun()
	if !ok {
		return nil, nil
	}
	// A new claim value, so that the history is read and not taken from the claim.
	one := &run.Claim{Run: run.Run{ID: r.here, Session: s.here, Workspace: b.actor[0].Workspace}}
	two := &run.Claim{Run: run.Run{ID: r.there, Session: s.there, Workspace: b.actor[1].Workspace}}
	m1, set1, err1 := b.rows.readHistory(one)
	m2, set2, err2 := b.store().History(b.t.Context(), two)
	line := func(s run.Settings) string {
		summary := "none"
		if m := s.Summary; m != nil {
			summary = fmt.Sprintf("%q of %d of %d messages by %s, its number %d", m.Text, m.Messages, m.Known, m.Run, m.Nth)
		}
		return fmt.Sprint(s.Preset, " ", orNothing(s.MaxSteps), " summary ", summary)
	}
	return append(messageLines(m1), line(set1), why(err1)), append(messageLines(m2), line(set2), why(err2))
}

func (b *both) lastStep() (here, there []string) {
	c, ok := b.aClaim()
	if !ok {
		return nil, nil
	}
	two := &run.Claim{Run: c.there.Run}
	got, err := b.store().LastStep(b.t.Context(), two)
	return stepLines(b.rows.lastStep(c.here), nil), stepLines(got, err)
}

func stepLines(s *run.OpenStep, err error) []string {
	if s == nil || err != nil {
		return []string{why(err)}
	}
	out := []string{fmt.Sprint(s.Index, orNothing(s.Message), s.State, s.FinishReason, s.InputTokens, s.OutputTokens, s.Waited)}
	for _, c := range s.Calls {
		out = append(out, callLine(&c))
	}
	return out
}

func callLine(c *run.Call) string {
	o := run.Outcome{}
	if c.Outcome != nil {
		o = *c.Outcome
	}
	deadline, asked, duration := fmt.Sprint(c.Deadline.UTC()), "nothing", o.DurationMS
	if c.Ask != nil {
		deadline = "an answer" // its clock differs
		if c.Ask.Question == run.AskClient {
			duration = 0 // likewise
		}
		asked = fmt.Sprintf("%s %s: %s %s %v", c.Ask.Question, c.Ask.Why, c.Ask.Decision, c.Ask.DecisionReason, c.Ask.DecidedBy != nil)
	}
	return fmt.Sprintf("%s %d %s %s %s %s until %s: %v %v %s %q %q %d, asked %s, told %q", c.Key, c.Index, c.ID, c.Name, c.Args, c.Effect, deadline,
		c.Outcome != nil, o.State, o.Result, o.ErrorType, o.Summary, duration, asked, c.Announced)
}

func (b *both) runOut() (here, there []string) {
	r, _, ok := b.aRun()
	if ok {
		b.rows.expireLease(r.here)
		b.exec(`UPDATE runs SET lease_until = now() - interval '1 s' WHERE id = $1 AND state = 'running'`, r.there)
	}
	return nil, nil
}

func (b *both) expire() (here, there []string) {
	quiet := time.Duration(b.rng.IntN(2)) * 30 * time.Minute
	one := b.rows.expireAbsent(quiet, func(runner string) bool { return runner != b.runners[0] })
	two, err := b.store().ExpireAbsent(b.t.Context(), quiet)
	return claimables(one, nil, math.MaxInt), claimables(two, err, math.MaxInt)
}

func (b *both) sweep() (here, there []string) {
	patience, limit := time.Duration(b.rng.IntN(2))*time.Hour, 1+b.rng.IntN(5)
	two, err := b.store().Sweep(b.t.Context(), patience, limit)
	one := b.rows.sweep(patience, limit)
	return claimables(one, nil, limit), claimables(two, err, limit)
}

func (b *both) ready() (here, there []string) {
	limit := 1 + b.rng.IntN(5)
	two, err := b.store().Ready(b.t.Context(), limit)
	one := b.rows.ready(limit)
	return claimables(one, nil, limit), claimables(two, err, limit)
}

func (b *both) next() (here, there []string) {
	two, err2 := b.store().Next(b.t.Context())
	one, err1 := b.rows.next()
	return claimables(one, err1, math.MaxInt), claimables(two, err2, math.MaxInt)
}

// claimables returns the found runs in a fixed order, or only their number if the limit may have
// cut them off.
func claimables(found []run.Claimable, err error, limit int) []string {
	out := []string{why(err), fmt.Sprint(len(found))}
	if len(found) < limit {
		for _, f := range found {
			out = append(out, fmt.Sprint(f.Session, f.Run, f.Epoch, f.Queued))
		}
		slices.Sort(out)
	}
	return out
}

// say deletes the first rows, like the publisher.
func (b *both) say() (here, there []string) {
	n := 1 + b.rng.IntN(6)
	var ids []int64
	for _, r := range b.rows.page(0, n) {
		ids = append(ids, r.ID)
	}
	b.rows.deleteOutbox(ids)
	b.exec(`DELETE FROM outbox WHERE id IN (SELECT id FROM outbox ORDER BY id LIMIT $1)`, n)
	return nil, nil
}

func (b *both) deleteSession() (here, there []string) {
	if b.rng.IntN(6) > 0 {
		return nil, nil
	}
	i := b.rng.IntN(len(b.spaces))
	one, err1 := b.rows.deleteSession(b.actor[0], b.spaces[i].here)
	two, err2 := b.people.Delete(b.t.Context(), b.actor[1], b.spaces[i].there)
	b.newSession()
	return []string{fmt.Sprint(one), why(err1)}, []string{fmt.Sprint(two), why(err2)}
}

// dumpModel and dumpPostgres return all tables, a line for each row.

func (b *both) dumpModel() []string {
	d, out := b.rows, []string{}
	for _, s := range d.allSessions {
		if d.sessions[s.id] != s {
			continue
		}
		out = append(out, fmt.Sprintf("session %s: %d %d after %d", s.id, s.nextOrdinal, s.nextPosition, s.leaf))
		for _, m := range d.allMessages {
			if m.session == s.id {
				out = append(out, fmt.Sprintf("message %d after %d %q %s", m.position, m.parent, m.key, messageLine(&m.Message)))
			}
		}
	}
	for _, r := range d.allRuns {
		if d.runs[r.ID] != r {
			continue
		}
		lease := "none"
		if !r.lease.IsZero() {
			lease = fmt.Sprint(r.lease.After(d.cfg.now()))
		}
		out = append(out, fmt.Sprintf("run %s by %q, lease %s", runLine(&r.Run), r.runner, lease))
		for i := range d.maxStep(r.ID) + 1 {
			if s := d.steps[stepKey{r.ID, i}]; s != nil {
				out = append(out, fmt.Sprintf("step %s %d: %s %q %q %v wasted %d %d", r.ID, i, s.state, s.response, s.reason, s.usage, s.wasted.Input, s.wasted.Output))
			}
			for _, c := range d.callsOf(r.ID, i) {
				out = append(out, "call "+callLine(&c))
			}
		}
	}
	for _, i := range d.inbox {
		message := "none"
		if !id.IsZero(i.message) {
			message = i.message.String()
		}
		out = append(out, fmt.Sprintf("inbox of %s: %s %s %v", i.run, i.kind, message, i.read))
	}
	for k, u := range d.usage {
		out = append(out, fmt.Sprintf("usage %s %d spent: %v", k.run, k.index, u))
	}
	for k, u := range d.wasted {
		out = append(out, fmt.Sprintf("usage %s %d wasted: %v", k.run, k.index, u))
	}
	slices.Sort(out)
	for _, o := range d.outbox {
		out = append(out, outboxLine(o))
	}
	return b.sorted(0, out, len(d.outbox))
}

func (b *both) dumpPostgres() []string {
	ctx, out := b.t.Context(), []string{}
	add := func(sql string, line func(rows pgx.Rows) (string, error)) {
		rows, err := b.admin.Query(ctx, sql)
		if err != nil {
			b.t.Fatal(err)
		}
		lines, err := pgx.CollectRows(rows, func(r pgx.CollectableRow) (string, error) { return line(rows) })
		if err != nil {
			b.t.Fatalf("%s: %v", sql, err)
		}
		out = append(out, lines...)
	}
	text := func(rows pgx.Rows) (s string, err error) { return s, rows.Scan(&s) }
	add(`SELECT format('session %s: %s %s after %s', id, next_ordinal, next_position, (
		SELECT coalesce(max(m.position), 0) FROM messages m WHERE m.session_id = s.id AND m.position <@ current_path(s.workspace_id, s.id))) FROM sessions s`, text)
	type message struct {
		run.Message
		Position, Parent int64
		Key              string
	}
	add(`SELECT `+run.MessageColumns+`, coalesce(position, 0) AS position, coalesce(parent_of(workspace_id, session_id, position), 0) AS parent, coalesce(idempotency_key, '') AS key FROM messages`, func(rows pgx.Rows) (string, error) {
		m, err := pgx.RowToStructByName[message](rows)
		return fmt.Sprintf("message %d after %d %q %s", m.Position, m.Parent, m.Key, messageLine(&m.Message)), err
	})
	type row struct {
		run.Run
		Runner, Lease string
	}
	add(`SELECT `+run.Columns+`, runner, coalesce((lease_until > clock_timestamp())::text, 'none') AS lease FROM runs`, func(rows pgx.Rows) (string, error) {
		r, err := pgx.RowToStructByName[row](rows)
		return fmt.Sprintf("run %s by %q, lease %s", runLine(&r.Run), r.Runner, r.Lease), err
	})
	add(`SELECT format('step %s %s: %s "%s" "%s" {%s %s %s %s %s %s} wasted %s %s', run_id, step_index, state, response_id, finish_reason,
		input_tokens, cache_read_tokens, cache_write_tokens, output_tokens, reasoning_tokens, estimated::text, wasted_input_tokens, wasted_output_tokens) FROM steps`, text)
	add(`SELECT format('call %s %s %s %s %s EFFECT_%s until %s: %s OUTCOME_STATE_%s %s "%s" "%s" %s, asked %s, told "%s"', key, call_index, tool_call_id, tool_name, args, upper(effect),
		CASE question WHEN '' THEN to_char(deadline AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS +0000 "UTC"') ELSE 'an answer' END,
		phase = 'done', CASE WHEN phase = 'done' THEN upper(coalesce(nullif(state, ''), 'unspecified')) ELSE 'UNSPECIFIED' END,
		CASE phase WHEN 'done' THEN result END, CASE phase WHEN 'done' THEN error_type END, summary, CASE question WHEN 'client' THEN 0 ELSE duration_ms END,
		CASE question WHEN '' THEN 'nothing' ELSE format('%s %s: %s %s %s', question, asked_why, decision, decided_why, (decided_by IS NOT NULL)::text) END,
		announced) FROM tool_calls`, func(rows pgx.Rows) (string, error) {
		s, err := text(rows)
		return strings.NewReplacer(": t ", ": true ", ": f ", ": false ").Replace(s), err
	})
	add(`SELECT format('inbox of %s: %s %s %s', run_id, kind, coalesce(message_id::text, 'none'), (read_at IS NOT NULL)::text) FROM run_inbox`, text)
	add(`SELECT format('usage %s %s %s: {%s %s %s %s %s %s}', run_id, step_index, CASE WHEN wasted THEN 'wasted' ELSE 'spent' END,
		input_tokens, cache_read_tokens, cache_write_tokens, output_tokens, reasoning_tokens, estimated::text) FROM usage`, text)
	slices.Sort(out)
	n := len(out)
	add(`SELECT id, subject, message_id, schema, payload, trace FROM outbox ORDER BY id`, func(rows pgx.Rows) (string, error) {
		o, err := pgx.RowToStructByName[outbox.Row](rows)
		return outboxLine(o), err
	})
	return b.sorted(1, out, len(out)-n)
}

// sorted sorts all lines but the last n by their form with names in place of ids.
func (b *both) sorted(side int, lines []string, n int) []string {
	lines = b.plain(side, lines)
	slices.Sort(lines[:len(lines)-n])
	return lines
}

// outboxLine formats a row without its time.
func outboxLine(o outbox.Row) string {
	payload := o.Payload
	if o.Schema == "signalbox.run.v1.Event" {
		ev := &runv1.Event{}
		if err := proto.Unmarshal(payload, ev); err != nil {
			return err.Error()
		}
		ev.Time = nil
		if m := ev.GetUserMessage(); m != nil {
			m.CreatedAt = (*timestamppb.Timestamp)(nil)
		}
		payload, _ = proto.MarshalOptions{Deterministic: true}.Marshal(ev)
	}
	return fmt.Sprintf("outbox %s %s %s %s", partition.ReplaceAllString(o.Subject, ".?."), o.MessageID, o.Schema, bytes.ToValidUTF8(payload, []byte("?")))
}

// partition returns a subject's partition, which depends on ids.
var partition = regexp.MustCompile(`\.[0-9]+(\.|$)`)
