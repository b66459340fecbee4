package agentrunner_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"google.golang.org/protobuf/types/known/timestamppb"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/pgtest"
	agentv1 "signalbox.dev/proto/signalbox/agent/v1"
	agentrunner "signalbox.dev/services/agent-runner"
)

func TestCatalogue(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, agentrunner.Migrations())
	// The positions of the copied streams belong to no workspace.
	shared := []string{"agent.run_log_positions"}
	problems, err := pgtest.CheckCatalogue(t.Context(), db.AdminURL, shared, agentrunner.Migrations())
	if err != nil || len(problems) > 0 {
		t.Errorf("CheckCatalogue = %q, %v, want no problem", problems, err)
	}
}

// The pages list every session once, even if many are created at the same time.
func TestListSessions(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start()
	const n = 25
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { w.session(&agentv1.CreateSessionRequest{Title: fmt.Sprintf("50%% of talk %02d", i)}) })
	}
	wg.Wait()
	seen := map[string]bool{}
	req := &agentv1.ListSessionsRequest{Limit: 7}
	for {
		res, err := w.conversations.ListSessions(w.as(identity.Viewer), req)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range res.GetSessions() {
			if seen[s.GetId()] {
				t.Errorf("session %s comes twice", s.GetId())
			}
			seen[s.GetId()] = true
			req.Before = s.GetCreatedAt()
		}
		if !res.GetMore() {
			break
		}
	}
	if len(seen) != n {
		t.Errorf("%d sessions on all pages, want %d", len(seen), n)
	}
	// By their last change: one that changes between two pages moves to the first one.
	list := func(token string) *agentv1.ListSessionsResponse {
		t.Helper()
		res, err := w.conversations.ListSessions(w.as(identity.Viewer), &agentv1.ListSessionsRequest{Limit: 7, ByUpdate: true, PageToken: token})
		if err != nil {
			t.Fatal(err)
		}
		return res
	}
	first := list("")
	rest := list(first.GetNextPageToken())
	moved := rest.GetSessions()[3].GetId()
	if _, err := w.conversations.UpdateSession(w.as(identity.Editor), &agentv1.UpdateSessionRequest{Id: moved, Title: new("50% of talk, changed")}); err != nil {
		t.Fatal(err)
	}
	listed := map[string]int{}
	for res := first; ; res = list(res.GetNextPageToken()) {
		for _, s := range res.GetSessions() {
			listed[s.GetId()]++
		}
		if !res.GetMore() {
			break
		}
	}
	if len(listed) != n-1 || listed[moved] != 0 || list("").GetSessions()[0].GetId() != moved {
		t.Errorf("by their last change: %v, want all but %s, which is first now", listed, moved)
	}
	for id, times := range listed {
		if times != 1 {
			t.Errorf("session %s comes %d times", id, times)
		}
	}
	for what, bad := range map[string]*agentv1.ListSessionsRequest{"an unknown token": {ByUpdate: true, PageToken: "x"}, "the other order's cursor": {ByUpdate: true, Before: timestamppb.Now()}} {
		if _, err := w.conversations.ListSessions(w.as(identity.Viewer), bad); fault.KindOf(err) != fault.Invalid {
			t.Errorf("%s is answered with %v, want invalid", what, err)
		}
	}
	for q, want := range map[string]int{"50% talk 07": 1, "50_": 0, "TALK": 20, "07 missing": 0} {
		res, err := w.conversations.ListSessions(w.as(identity.Viewer), &agentv1.ListSessionsRequest{Query: q})
		if err != nil || len(res.GetSessions()) != want {
			t.Errorf("ListSessions(%q) = %d sessions, %v, want %d", q, len(res.GetSessions()), err, want)
		}
	}
}

// Sessions are found by what was said in them, of their own workspace alone, and by their state. A
// list says how far the newest run of each has come.
func TestSearchSessions(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	began := make(chan struct{})
	w.model.then(says("The quick brown fox\njumps over it's own shadow. "+strings.Repeat("Nothing else to say. ", 30)),
		func(a *answer) { a.begin(); close(began); <-a.r.Context().Done() })
	w.start()
	fox := w.session(&agentv1.CreateSessionRequest{Title: "Animals"})
	v := w.watch(fox)
	w.submit(fox, `Tell me of zebras and C:\temp`)
	v.until(isEnd)
	busy := w.session(&agentv1.CreateSessionRequest{Title: "Busy"})
	w.submit(busy, "zebras")
	<-began
	later := w.submit(busy, "later").GetRun().GetId()

	mine := w.workspace
	w.workspace = id.New[id.Workspace]()
	w.session(&agentv1.CreateSessionRequest{Title: "Theirs"})
	w.workspace = mine

	find := func(req *agentv1.ListSessionsRequest) (found []string) {
		t.Helper()
		res, err := w.conversations.ListSessions(w.as(identity.Viewer), req)
		if err != nil {
			t.Fatalf("ListSessions(%v): %v", req, err)
		}
		for _, s := range res.GetSessions() {
			found = append(found, s.GetTitle()+" "+s.GetState()+": "+s.GetMatch())
		}
		return found
	}
	said := "quick brown fox jumps over it's own shadow. Nothing else to say. Nothing else to say. Nothing else to say. Nothing else"
	for _, c := range []struct {
		req  *agentv1.ListSessionsRequest
		want []string
	}{
		{&agentv1.ListSessionsRequest{Query: "FOX jum"}, []string{"Animals idle: " + said}},
		{&agentv1.ListSessionsRequest{Query: "it's"}, []string{"Animals idle: " + said}},
		{&agentv1.ListSessionsRequest{Query: `c:\temp`}, []string{`Animals idle: Tell me of zebras and C:\temp`}},
		{&agentv1.ListSessionsRequest{Query: "zebra"}, []string{"Busy running: zebras", `Animals idle: Tell me of zebras and C:\temp`}},
		{&agentv1.ListSessionsRequest{Query: "zebra", State: "running"}, []string{"Busy running: zebras"}},
		{&agentv1.ListSessionsRequest{Query: "nimal"}, []string{"Animals idle: "}},
		{&agentv1.ListSessionsRequest{Query: "fox zebras"}, nil}, // in different messages
		{&agentv1.ListSessionsRequest{Query: "text type"}, nil},  // the JSON's own words
		{&agentv1.ListSessionsRequest{Query: "workspace " + mine.String()}, nil},
		{&agentv1.ListSessionsRequest{Query: `& ! ' \ :* <->`}, nil},
		{&agentv1.ListSessionsRequest{State: "idle"}, []string{"Animals idle: "}},
		{&agentv1.ListSessionsRequest{State: "queued"}, nil}, // the session runs
		{&agentv1.ListSessionsRequest{State: "waiting"}, nil},
	} {
		if diff := cmp.Diff(c.want, find(c.req)); diff != "" {
			t.Errorf("ListSessions(%v) (-want +got):\n%s", c.req, diff)
		}
	}
	for _, bad := range []*agentv1.ListSessionsRequest{{State: "done"}, {Query: strings.Repeat("a ", 17)}, {Query: strings.Repeat("a", 201)}} {
		if _, err := w.conversations.ListSessions(w.as(identity.Viewer), bad); fault.KindOf(err) != fault.Invalid {
			t.Errorf("ListSessions(%v) = %v, want invalid", bad, err)
		}
	}
	w.workspace = id.New[id.Workspace]()
	if found := find(&agentv1.ListSessionsRequest{Query: "fox"}); found != nil {
		t.Errorf("another workspace finds %v", found)
	}
	w.workspace = mine
	checkSearchIndex(t, w)
	w.session(&agentv1.CreateSessionRequest{Title: "Empty"})
	if _, err := w.conversations.Cancel(w.as(identity.Editor), &agentv1.CancelRequest{SessionId: busy, RunId: later}); err != nil { // it never begins
		t.Fatal(err)
	}
	res, err := w.conversations.ListSessions(w.as(identity.Viewer), &agentv1.ListSessionsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	last := map[string]string{}
	for _, s := range res.GetSessions() {
		last[s.GetTitle()] = fmt.Sprintf("%s %d", s.GetLastRun().GetState(), s.GetLastRun().GetSteps())
	}
	want := map[string]string{"Animals": "RUN_STATE_DONE 1", "Busy": "RUN_STATE_RUNNING 0", "Empty": "RUN_STATE_UNSPECIFIED 0"}
	if diff := cmp.Diff(want, last); diff != "" {
		t.Errorf("the newest runs that have begun (-want +got):\n%s", diff)
	}
	for _, s := range []string{fox, busy} {
		if _, err := w.conversations.DeleteSession(w.as(identity.Editor), &agentv1.DeleteSessionRequest{Id: s}); err != nil {
			t.Fatal(err)
		}
	}
	var kept int
	admin, err := pgx.Connect(t.Context(), w.db.AdminURL)
	if err == nil {
		defer admin.Close(t.Context())
		err = admin.QueryRow(t.Context(), `SELECT count(*) FROM agent.message_words`).Scan(&kept)
	}
	if err != nil || kept != 0 {
		t.Errorf("the words of %d deleted messages are kept, %v", kept, err)
	}
}

// checkSearchIndex checks that a search reads the words of one workspace from the index, although
// row-level security comes first.
func checkSearchIndex(t *testing.T, w *world) {
	t.Helper()
	var plan []string
	err := w.db.Open(t, agentrunner.Migrations()).InWorkspace(t.Context(), w.workspace, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `SET LOCAL enable_seqscan = off`); err != nil {
			return err
		}
		rows, err := tx.Query(ctx, `EXPLAIN SELECT session_id FROM message_words`)
		if err != nil {
			return err
		}
		plan, err = pgx.CollectRows(rows, pgx.RowTo[string])
		return err
	})
	if text := strings.Join(plan, "\n"); err != nil || !strings.Contains(text, "Index Cond: (words @@") {
		t.Errorf("%v; a search does not use the index:\n%s", err, text)
	}
}

func TestSessionLife(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start()
	ctx := w.as(identity.Editor)
	made, err := w.conversations.CreateSession(ctx, &agentv1.CreateSessionRequest{IdempotencyKey: "k", Tools: &agentv1.ToolSelection{}})
	if err != nil {
		t.Fatal(err)
	}
	s := made.GetSession()
	if s.GetModel() != "claude-sonnet-4-5-20250929" || s.GetProvider() != "anthropic" || s.GetPreset() != "workspace" || s.GetTools() == nil || len(s.GetTools().GetNames()) != 0 {
		t.Errorf("CreateSession = %v, want the defaults and the choice of no tools", s)
	}
	_, err = w.conversations.CreateSession(ctx, &agentv1.CreateSessionRequest{IdempotencyKey: "k"})
	if f := fault.From(err); f.Kind != fault.Conflict || f.Code != "IDEMPOTENCY_KEY_REUSED" {
		t.Errorf("CreateSession of another session with the same key = %v, want a conflict", err)
	}
	again, err := w.conversations.CreateSession(ctx, &agentv1.CreateSessionRequest{IdempotencyKey: "k", Tools: &agentv1.ToolSelection{}})
	if err != nil || again.GetSession().GetId() != s.GetId() {
		t.Errorf("CreateSession with the same key = %v, %v, want the same session", again, err)
	}
	byKey, err := w.conversations.GetSession(ctx, &agentv1.GetSessionRequest{IdempotencyKey: "k"})
	if err != nil || byKey.GetSession().GetId() != s.GetId() {
		t.Errorf("GetSession by the key = %v, %v, want the session", byKey, err)
	}
	actor, _ := identity.From(ctx)
	actor.Member = id.New[id.Member]()
	for who, ctx := range map[string]context.Context{"another member": identity.With(ctx, actor), "an unknown key": ctx} {
		key := map[string]string{"another member": "k", "an unknown key": "l"}[who]
		if _, err := w.conversations.GetSession(ctx, &agentv1.GetSessionRequest{IdempotencyKey: key}); fault.KindOf(err) != fault.NotFound {
			t.Errorf("GetSession by %s = %v, want not found", who, err)
		}
	}
	title, archived := "Plans", true
	changed, err := w.conversations.UpdateSession(ctx, &agentv1.UpdateSessionRequest{Id: s.GetId(), Title: &title, Archived: &archived, ResetTools: true})
	if err != nil || changed.GetSession().GetTitle() != title || !changed.GetSession().GetArchived() || changed.GetSession().GetTools() != nil {
		t.Errorf("UpdateSession = %v, %v", changed, err)
	}
	list, err := w.conversations.ListSessions(ctx, &agentv1.ListSessionsRequest{})
	if err != nil || len(list.GetSessions()) != 0 {
		t.Errorf("ListSessions = %v, %v, want no archived ones", list, err)
	}
	if _, err := w.conversations.DeleteSession(ctx, &agentv1.DeleteSessionRequest{Id: s.GetId()}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.conversations.DeleteSession(ctx, &agentv1.DeleteSessionRequest{Id: s.GetId()}); fault.KindOf(err) != fault.NotFound {
		t.Errorf("DeleteSession again = %v, want not found", err)
	}
}

func TestTenancy(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start()
	session := w.session(&agentv1.CreateSessionRequest{})
	stranger := identity.With(t.Context(), identity.Actor{Workspace: id.New[id.Workspace](), Member: id.New[id.Member](), Role: identity.Owner})
	for name, call := range map[string]func(context.Context) error{
		"get": func(ctx context.Context) error {
			_, err := w.conversations.GetSession(ctx, &agentv1.GetSessionRequest{Id: session})
			return err
		},
		"update": func(ctx context.Context) error {
			_, err := w.conversations.UpdateSession(ctx, &agentv1.UpdateSessionRequest{Id: session})
			return err
		},
		"delete": func(ctx context.Context) error {
			_, err := w.conversations.DeleteSession(ctx, &agentv1.DeleteSessionRequest{Id: session})
			return err
		},
		"submit": func(ctx context.Context) error {
			_, err := w.conversations.Submit(ctx, &agentv1.SubmitRequest{SessionId: session, ContentJson: `"hi"`})
			return err
		},
		"cancel": func(ctx context.Context) error {
			_, err := w.conversations.Cancel(ctx, &agentv1.CancelRequest{SessionId: session})
			return err
		},
	} {
		if err := call(stranger); fault.KindOf(err) != fault.NotFound {
			t.Errorf("%s from another workspace = %v, want not found", name, err)
		}
		if err := call(w.as(identity.Viewer)); name != "get" && fault.KindOf(err) != fault.Forbidden {
			t.Errorf("%s by a viewer = %v, want forbidden", name, err)
		}
	}
	if err := w.look(session).GetSession(); err == nil {
		t.Error("the session is gone")
	}
}

func TestBadRequests(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start()
	ctx := w.as(identity.Editor)
	session := w.session(&agentv1.CreateSessionRequest{})
	create := func(r *agentv1.CreateSessionRequest) error {
		_, err := w.conversations.CreateSession(ctx, r)
		return err
	}
	submit := func(content string) error {
		_, err := w.conversations.Submit(ctx, &agentv1.SubmitRequest{SessionId: session, ContentJson: content})
		return err
	}
	for _, tc := range []struct {
		name string
		err  error
		want string
	}{
		{"long title", create(&agentv1.CreateSessionRequest{Title: strings.Repeat("x", 201)}), "title"},
		{"control character", create(&agentv1.CreateSessionRequest{Title: "a\nb"}), "title"},
		{"provider", create(&agentv1.CreateSessionRequest{Provider: "../etc"}), "provider"},
		{"preset", create(&agentv1.CreateSessionRequest{Preset: "nope"}), "preset"},
		{"steps", create(&agentv1.CreateSessionRequest{MaxSteps: 51}), "max_steps"},
		{"tool name", create(&agentv1.CreateSessionRequest{Tools: &agentv1.ToolSelection{Names: []string{"ok", "no good"}}}), "tools[1]"},
		{"empty content", submit(`""`), "content"},
		{"no JSON", submit(`{`), "content"},
		{"number", submit(`1`), "content"},
		{"image part", submit(`[{"type":"image","image":"x"}]`), "file"},
		{"bad base64", submit(`[{"type":"file","mediaType":"image/png","data":"***"}]`), "content[0]"},
	} {
		if fault.KindOf(tc.err) != fault.Invalid || !strings.Contains(tc.err.Error(), tc.want) {
			t.Errorf("%s: %v, want an invalid fault that names %s", tc.name, tc.err, tc.want)
		}
	}
	const hidden, visible = "Pay\u202e\u200broll", "Payroll"
	res, err := w.conversations.CreateSession(ctx, &agentv1.CreateSessionRequest{Title: hidden})
	if err != nil || res.GetSession().GetTitle() != visible {
		t.Errorf("a session with the title %+q = %v, %v, want %q", hidden, res, err, visible)
	}
	renamed, err := w.conversations.UpdateSession(ctx, &agentv1.UpdateSessionRequest{Id: session, Title: new(hidden)})
	if err != nil || renamed.GetSession().GetTitle() != visible {
		t.Errorf("the title set to %+q = %v, %v, want %q", hidden, renamed, err, visible)
	}
	if got := len(w.look(session).GetMessages()); got != 0 {
		t.Errorf("%d messages were stored", got)
	}
	if diff := cmp.Diff(0, len(w.model.asked())); diff != "" {
		t.Error(diff)
	}
}
