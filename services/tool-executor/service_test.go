package toolexecutor_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/pgtest"
	"signalbox.dev/pkg/subject"
	credentialv1 "signalbox.dev/proto/signalbox/credential/v1"
	documentv1 "signalbox.dev/proto/signalbox/document/v1"
	toolv1 "signalbox.dev/proto/signalbox/tool/v1"
	"signalbox.dev/services/e2e/farend"
	toolexecutor "signalbox.dev/services/tool-executor"
	"signalbox.dev/services/tool-executor/internal/ledger"
)

const (
	ok      = toolv1.OutcomeState_OUTCOME_STATE_OK
	failed  = toolv1.OutcomeState_OUTCOME_STATE_ERROR
	unknown = toolv1.OutcomeState_OUTCOME_STATE_UNKNOWN
)

func TestCatalogue(t *testing.T) {
	t.Parallel()
	problems, err := pgtest.CheckCatalogue(t.Context(), newWorld(t).db.AdminURL, nil, toolexecutor.Migrations())
	if err != nil || len(problems) > 0 {
		t.Errorf("CheckCatalogue() = %q, %v, want none", problems, err)
	}
}

func TestDocumentsOverTheBus(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	i := w.start(t, toolexecutor.Config{})
	created := w.do(t, "doc_create", map[string]any{"name": "Plan", "content": "one"})
	doc, _ := fields(t, created)["id"].(string)
	if created.GetState() != ok || doc == "" || created.GetSummary() != "Plan" || created.GetToolCallId() != "toolu_1" || created.GetRunId() != w.actor.Run.String() {
		t.Fatalf("doc_create = %v", created)
	}
	if o := w.do(t, "doc_edit", map[string]any{"id": doc, "old_text": "one", "new_text": "two"}); o.GetState() != ok || fields(t, o)["replacements"] != 1.0 {
		t.Errorf("doc_edit = %v", o)
	}
	if o := w.do(t, "doc_edit", map[string]any{"id": doc, "old_text": "one", "new_text": "two"}); o.GetState() != failed || o.GetErrorType() != "not_found_text" {
		t.Errorf("doc_edit of what is not there = %v", o)
	}
	if o := w.do(t, "doc_read", map[string]any{"id": doc}); fields(t, o)["content"] != "two" {
		t.Errorf("doc_read = %v", o)
	}
	if o := w.do(t, "doc_read", map[string]any{"name": "Plan"}); o.GetErrorType() != "invalid_arguments" || !strings.Contains(o.GetResultJson(), "arguments.id: is missing") {
		t.Errorf("doc_read without an id = %v", o)
	}
	if o := w.do(t, "get_current_datetime", map[string]any{}); o.GetState() != ok || fields(t, o)["timezone"] != "UTC" {
		t.Errorf("get_current_datetime = %v", o)
	}
	if o := w.do(t, "no such tool", map[string]any{}); o.GetErrorType() != "unknown_tool" {
		t.Errorf("an unknown tool = %v", o)
	}
	if o := w.do(t, "web_search", map[string]any{"query": "x"}); o.GetState() != failed {
		t.Errorf("web_search = %v", o)
	}

	// What was announced can also be asked for, in the call's workspace.
	c := i.client(t)
	keys := []string{created.GetKey(), id.New[id.Operation]().String()}
	got, err := c.GetOutcomes(identity.With(t.Context(), w.actor), &toolv1.GetOutcomesRequest{Keys: keys})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]*toolv1.Outcome{created}, got.GetOutcomes(), protocmp.Transform()); diff != "" {
		t.Errorf("GetOutcomes (-want +got):\n%s", diff)
	}
	stranger := w.actor
	stranger.Workspace = id.New[id.Workspace]()
	if got, err := c.GetOutcomes(identity.With(t.Context(), stranger), &toolv1.GetOutcomesRequest{Keys: keys}); err != nil || len(got.GetOutcomes()) != 0 {
		t.Errorf("GetOutcomes of another workspace = %v, %v, want none", got, err)
	}
	for name, keys := range map[string][]string{"no UUID": {"x"}, "too many": slices.Repeat(keys, 129)} {
		if _, err := c.GetOutcomes(identity.With(t.Context(), w.actor), &toolv1.GetOutcomesRequest{Keys: keys}); fault.KindOf(err) != fault.Invalid {
			t.Errorf("GetOutcomes, %s = %v, want Invalid", name, err)
		}
	}
}

func TestListTools(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.start(t, toolexecutor.Config{}).client(t)
	viewer := w.actor
	viewer.Role = identity.Viewer
	res, err := c.ListTools(identity.With(t.Context(), viewer), &toolv1.ListToolsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, tool := range res.GetTools() {
		names = append(names, tool.GetName())
		configured := tool.GetName() != "read_research" && !strings.HasPrefix(tool.GetName(), "browser_")
		if tool.GetAvailable() != configured || configured != (tool.GetUnavailableReason() == "") || tool.GetDeadlineMs() != 30_000 || !strings.Contains(tool.GetInputSchemaJson(), `"type": "object"`) || tool.GetGuidance() == "" {
			t.Errorf("tool %v", tool)
		}
	}
	want := []string{
		"browser_click", "browser_open", "browser_read", "browser_screenshot", "browser_type",
		"calendar_create_event", "calendar_delete_event", "calendar_list_events", "calendar_update_event",
		"doc_append", "doc_create", "doc_delete", "doc_edit", "doc_list", "doc_read", "get_current_datetime",
		"notion_append", "notion_read_page", "notion_search", "read_research",
		"tasks_complete", "tasks_create", "tasks_delete", "tasks_list", "web_search",
	}
	if diff := cmp.Diff(want, names); diff != "" {
		t.Errorf("tools (-want +got):\n%s", diff)
	}
	if _, err := c.ListTools(t.Context(), &toolv1.ListToolsRequest{}); err == nil {
		t.Error("ListTools without an identity worked")
	}
}

// TestAvailability asks for the tools while the connections of a workspace change, and while the
// broker is away.
func TestAvailability(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.start(t, toolexecutor.Config{}).client(t)
	list := func() map[string]*toolv1.Tool {
		t.Helper()
		res, err := c.ListTools(identity.With(t.Context(), w.actor), &toolv1.ListToolsRequest{})
		if err != nil {
			t.Fatal(err)
		}
		all := map[string]*toolv1.Tool{}
		for _, tool := range res.GetTools() {
			all[tool.GetName()] = tool
		}
		return all
	}
	w.broker.Down(true)
	if got := list()["calendar_list_events"]; !got.GetAvailable() {
		t.Errorf("while nobody knows: %v, want it available", got)
	}
	w.broker.Down(false)
	codes := map[credentialv1.ConnectionState]string{
		credentialv1.ConnectionState_CONNECTION_STATE_NOT_CONFIGURED: `"code":"UNAVAILABLE","reason":"Google is not set up: the test says so"}`,
		credentialv1.ConnectionState_CONNECTION_STATE_NOT_CONNECTED:  `"code":"NOT_CONNECTED","service":"google"}`,
		credentialv1.ConnectionState_CONNECTION_STATE_REAUTHORIZE:    `"code":"CONNECTION_REFUSED","service":"google","reason":"the test says so"}`,
		credentialv1.ConnectionState_CONNECTION_STATE_DISABLED:       `"code":"CONNECTION_DISABLED","service":"google"}`,
	}
	for state, want := range map[credentialv1.ConnectionState]*toolv1.Tool{
		credentialv1.ConnectionState_CONNECTION_STATE_NOT_CONFIGURED: {UnavailableReason: "Google is not set up: the test says so"},
		credentialv1.ConnectionState_CONNECTION_STATE_NOT_CONNECTED:  {UnavailableReason: "Google is not connected", ConnectUrl: "/api/connections"},
		credentialv1.ConnectionState_CONNECTION_STATE_REAUTHORIZE:    {UnavailableReason: "Google has to be connected again: the test says so", ConnectUrl: "/api/connections"},
		credentialv1.ConnectionState_CONNECTION_STATE_DISABLED:       {UnavailableReason: "an owner has disabled the connection to Google"},
		credentialv1.ConnectionState_CONNECTION_STATE_CONNECTED:      {Available: true},
	} {
		w.broker.Set("google", state)
		w.actor.Workspace = id.New[id.Workspace]() // nothing is known of it
		before := w.broker.Lists()
		all := list()
		list()
		for _, name := range []string{"calendar_list_events", "tasks_create"} {
			got := &toolv1.Tool{Available: all[name].GetAvailable(), UnavailableReason: all[name].GetUnavailableReason(), ConnectUrl: all[name].GetConnectUrl()}
			if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
				t.Errorf("%v: %s (-want +got):\n%s", state, name, diff)
			}
		}
		if n := w.broker.Lists() - before; n != 1 {
			t.Errorf("two lists asked the broker %d times, want once", n)
		}
		if !all["notion_search"].GetAvailable() || !all["doc_list"].GetAvailable() {
			t.Errorf("%v of Google: Notion and documents are not available", state)
		}
		if o := w.do(t, "tasks_list", map[string]any{}); (o.GetState() == ok) != want.GetAvailable() || !want.GetAvailable() && !strings.Contains(o.GetResultJson(), want.GetUnavailableReason()) || !strings.Contains(o.GetResultJson(), codes[state]) {
			t.Errorf("%v: tasks_list = %v", state, o)
		}
	}
}

// TestServicesHaveOneEffect delivers calls again, and lets an executor die after the effect: there
// is one event, one task.
func TestServicesHaveOneEffect(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	client := w.start(t, toolexecutor.Config{}).client(t)
	count := func(name, list string) (n int) {
		t.Helper()
		all, _ := fields(t, w.do(t, name, map[string]any{}))[list].([]any)
		for _, one := range all {
			if o, _ := one.(map[string]any); o["title"] == "Tea" {
				n++
			}
		}
		return n
	}
	tomorrow := time.Now().Add(24 * time.Hour).Format(time.RFC3339)
	for name, tt := range map[string]struct {
		list, in string
		args     map[string]any
		effect   toolv1.Effect
	}{
		"calendar_create_event": {"calendar_list_events", "events", map[string]any{"title": "Tea", "start": tomorrow}, toolv1.Effect_EFFECT_KEYED},
		"tasks_create":          {"tasks_list", "tasks", map[string]any{"title": "Tea"}, toolv1.Effect_EFFECT_VERIFY},
	} {
		c := w.call(t, name, tt.args)
		for n := range 3 {
			w.publish(t, c, fmt.Sprint(n))
		}
		if o := w.of(t, c); o.GetState() != ok {
			t.Fatalf("%s = %v", name, o)
		}
		if n := count(tt.list, tt.in); n != 1 {
			t.Errorf("%s, delivered three times, made %d", name, n)
		}
		// The outcome is lost with the executor, the effect is not.
		w.forget(t, c)
		w.dies(t, c, tt.effect)
		var o *toolv1.Outcome // asked for: announcements may be of the deliveries before
		await(t, "the call to be taken over", func() bool {
			got, err := client.GetOutcomes(identity.With(t.Context(), w.actor), &toolv1.GetOutcomesRequest{Keys: []string{c.GetKey()}})
			if err == nil && len(got.GetOutcomes()) == 1 {
				o = got.GetOutcomes()[0]
			}
			return o != nil
		})
		if o.GetState() != ok || !strings.Contains(o.GetResultJson(), `"title":"Tea"`) {
			t.Errorf("%s of a dead executor = %v", name, o)
		}
		if n := count(tt.list, tt.in); n != 1 {
			t.Errorf("%s, whose executor died, made %d", name, n)
		}
	}
}

func TestRolesAndTenants(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start(t, toolexecutor.Config{})
	doc, _ := fields(t, w.do(t, "doc_create", map[string]any{"name": "n"}))["id"].(string)

	w.actor.Role = identity.Viewer
	if o := w.do(t, "doc_append", map[string]any{"id": doc, "content": "x"}); o.GetErrorType() != "forbidden" || !strings.Contains(o.GetResultJson(), "may only read documents") {
		t.Errorf("doc_append by a viewer's run = %v", o)
	}
	if o := w.do(t, "doc_read", map[string]any{"id": doc}); o.GetState() != ok {
		t.Errorf("doc_read by a viewer's run = %v", o)
	}
	w.actor.Role, w.actor.Workspace = identity.Owner, id.New[id.Workspace]()
	if o := w.do(t, "doc_read", map[string]any{"id": doc}); o.GetErrorType() != "not_found" {
		t.Errorf("doc_read from another workspace = %v", o)
	}
}

// TestDocumentToolsTakeEffectOnce delivers calls again and lets executors die
// around them, through the whole service.
func TestDocumentToolsTakeEffectOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start(t, toolexecutor.Config{})
	w.start(t, toolexecutor.Config{})
	doc, _ := fields(t, w.do(t, "doc_create", map[string]any{"name": "n"}))["id"].(string)

	for i, died := range []string{"never", "before the effect", "before the record"} {
		line := fmt.Sprintf("line %d", i)
		c := w.call(t, "doc_append", map[string]any{"id": doc, "content": line})
		if died != "never" {
			w.dies(t, c, toolv1.Effect_EFFECT_SAME_TX)
		}
		if died == "before the record" {
			// The effect of the one that died, under the call's key.
			ctx := identity.With(t.Context(), w.actor)
			if _, err := w.docs.Append(ctx, &documentv1.AppendRequest{Id: doc, Markdown: line, OperationKey: c.GetKey()}); err != nil {
				t.Fatal(err)
			}
		}
		for n := range 3 {
			w.publish(t, c, fmt.Sprint(n))
		}
		if o := w.of(t, c); o.GetState() != ok {
			t.Errorf("died %s: outcome %v", died, o)
		}
		w.publish(t, c, "late") // it is announced again
		if o := w.of(t, c); o.GetState() != ok {
			t.Errorf("died %s: outcome %v, announced again", died, o)
		}
		if n := strings.Count(w.docs.Content(doc), line); n != 1 {
			t.Errorf("died %s: the line is there %d times, want once", died, n)
		}
	}
}

// dies lets an executor claim a call and not be heard of again.
func (w *world) dies(t testing.TB, c *toolv1.Call, effect toolv1.Effect) {
	t.Helper()
	work, err := proto.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	l := ledger.New(w.db.Open(t, toolexecutor.Migrations()), "dead/"+c.GetKey(), time.Hour)
	_, err = l.Claim(t.Context(), ledger.Call{
		Ref: ledger.Ref{Workspace: w.actor.Workspace, Key: id.Must[id.Operation](c.GetKey())}, Run: w.actor.Run, Session: w.actor.Session,
		ToolName: c.GetToolName(), Effect: effect, Work: work,
	})
	if err != nil {
		t.Fatal(err)
	}
}

// forget removes a call from the ledger.
func (w *world) forget(t testing.TB, c *toolv1.Call) {
	t.Helper()
	// AsSystem: the test looks at any workspace.
	err := w.db.Open(t, toolexecutor.Migrations()).AsSystem(t.Context(), func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "DELETE FROM outcomes WHERE workspace_id = @workspace AND key = @key", pgx.NamedArgs{"workspace": c.GetWorkspaceId(), "key": c.GetKey()})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestCallWithoutItsMessage is about a bus that has lost everything: what an
// executor had begun with is ended by another one all the same.
func TestCallWithoutItsMessage(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start(t, toolexecutor.Config{})
	w.start(t, toolexecutor.Config{})
	c := w.call(t, "doc_create", map[string]any{"name": "n"})
	w.dies(t, c, toolv1.Effect_EFFECT_SAME_TX)
	if o := w.next(t); o.GetKey() != c.GetKey() || o.GetState() != ok || w.docs.Effects() != 1 {
		t.Errorf("outcome = %v with %d effects, want it done once", o, w.docs.Effects())
	}
}

// blind is a tool of a main package, with an effect that cannot be looked up.
type blind struct{ far *farend.Client }

func (b blind) Spec() toolexecutor.Spec {
	return toolexecutor.Spec{
		Name: "act_blindly", Description: "acts upon the remote side", InputSchema: []byte(`{"type":"object"}`), Effect: toolv1.Effect_EFFECT_UNSAFE,
	}
}

func (b blind) Available(context.Context) toolexecutor.Availability {
	return toolexecutor.Availability{Available: true}
}

func (b blind) Run(ctx context.Context, c toolexecutor.Call) (toolexecutor.Result, error) {
	e, err := b.far.Blind(ctx, c.Key.String(), farend.Latency{})
	if err != nil {
		return toolexecutor.Result{}, err
	}
	return toolexecutor.Object(e), nil
}

// TestAddedTools runs tools that are not built in, and delivers them again.
func TestAddedTools(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	far := farend.New()
	web := httptest.NewServer(far)
	h := &http.Client{Transport: &http.Transport{}}
	t.Cleanup(func() {
		far.Close()
		h.CloseIdleConnections()
		web.Close()
	})
	w.tools = []toolexecutor.Tool{blind{farend.NewClient(web.URL, h)}}
	i := w.start(t, toolexecutor.Config{})
	res, err := i.client(t).ListTools(identity.With(t.Context(), w.actor), &toolv1.ListToolsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(res.GetTools(), func(tool *toolv1.Tool) bool {
		return tool.GetName() == "act_blindly" && tool.GetSource() == "built-in" && tool.GetEffect() == toolv1.Effect_EFFECT_UNSAFE
	}) {
		t.Errorf("ListTools has no act_blindly: %v", res)
	}
	c := w.call(t, "act_blindly", map[string]any{})
	for n := range 3 {
		w.publish(t, c, fmt.Sprint(n))
	}
	if o := w.of(t, c); o.GetState() != ok || o.GetResultJson() != `{"id":"1"}` {
		t.Errorf("outcome = %v", o)
	}
	dead := w.call(t, "act_blindly", map[string]any{})
	w.dies(t, dead, toolv1.Effect_EFFECT_UNSAFE)
	if o := w.of(t, dead); o.GetState() != unknown || o.GetErrorType() != "unknown_outcome" {
		t.Errorf("outcome of the call of a dead executor = %v, want it unknown", o)
	}
	if got := far.Get(c.GetKey()).Effects + far.Get(dead.GetKey()).Effects; got != 1 {
		t.Errorf("%d effects, want 1", got)
	}
}

func TestCancelOverTheBus(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start(t, toolexecutor.Config{})
	w.start(t, toolexecutor.Config{})
	defer w.docs.Hold()()
	c := w.call(t, "doc_create", map[string]any{"name": "n"})
	w.publish(t, c, "")
	await(t, "the call to be on its way", func() bool { return len(w.docs.Actors()) == 1 })
	if err := w.bus.Nudge(t.Context(), subject.ToolCancel(w.actor.Run), &toolv1.Cancel{RunId: w.actor.Run.String()}); err != nil {
		t.Fatal(err)
	}
	// The request was on its way: that it had no effect is not known here.
	if o := w.next(t); o.GetState() != unknown || o.GetErrorType() != "cancelled" || w.docs.Effects() != 0 {
		t.Errorf("outcome = %v with %d effects, want it cancelled", o, w.docs.Effects())
	}
}

// await polls until done returns true.
func await(t testing.TB, what string, done func() bool) {
	t.Helper()
	for until := time.Now().Add(20 * time.Second); !done(); {
		if time.Now().After(until) {
			t.Fatalf("waited 20 s for %s", what)
		}
		<-time.After(time.Millisecond)
	}
}

func TestDrainHandsCallsOver(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	leaving := w.start(t, toolexecutor.Config{Drain: time.Second})
	release := w.docs.Hold()
	c := w.call(t, "doc_create", map[string]any{"name": "n"})
	w.publish(t, c, "")
	await(t, "the call to be on its way", func() bool { return len(w.docs.Actors()) == 1 })
	leaving.stop()
	release()
	w.start(t, toolexecutor.Config{})
	if o := w.next(t); o.GetKey() != c.GetKey() || o.GetState() != ok || w.docs.Effects() != 1 {
		t.Errorf("outcome = %v with %d effects, want it done once, by the next executor", o, w.docs.Effects())
	}
}

func TestDrainLetsCallsFinish(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	leaving := w.start(t, toolexecutor.Config{})
	release := w.docs.Hold()
	w.publish(t, w.call(t, "doc_create", map[string]any{"name": "n"}), "")
	await(t, "the call to be on its way", func() bool { return len(w.docs.Actors()) == 1 })
	stopped := make(chan struct{})
	go func() {
		leaving.stop()
		close(stopped)
	}()
	release()
	if o := w.next(t); o.GetState() != ok {
		t.Errorf("outcome = %v, want the call finished while draining", o)
	}
	<-stopped
}

func TestManyCallsDelayNoOtherWorkspace(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start(t, toolexecutor.Config{Slots: 4, PerWorkspace: 2})
	release := w.docs.Hold()
	const flood = 30
	for range flood {
		w.publish(t, w.call(t, "doc_create", map[string]any{"name": "flood"}), "")
	}
	await(t, "the flood to take its slots", func() bool { return len(w.docs.Actors()) == 2 })
	w.actor.Workspace = id.New[id.Workspace]()
	if o := w.do(t, "get_current_datetime", map[string]any{}); o.GetState() != ok {
		t.Errorf("outcome of the other workspace = %v", o)
	}
	release()
	for range flood {
		if o := w.next(t); o.GetState() != ok {
			t.Errorf("outcome of the flood = %v", o)
		}
	}
	if n := w.docs.Effects(); n != flood {
		t.Errorf("%d effects, want %d", n, flood)
	}
}

// A slot that becomes free goes to the workspace that has none, although calls of another
// one have waited for longer.
func TestFreeSlotGoesToTheWorkspaceWithoutOne(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const slots, flood = 2, 7
	w.start(t, toolexecutor.Config{Slots: slots})
	release := w.docs.Hold()
	for range flood {
		w.publish(t, w.call(t, "doc_create", map[string]any{"name": "flood"}), "")
	}
	await(t, "the flood to take all slots", func() bool { return len(w.docs.Actors()) == slots })
	other := id.New[id.Workspace]()
	w.actor.Workspace = other
	w.publish(t, w.call(t, "doc_create", map[string]any{"name": "other"}), "")
	for round := range 2 { // the call may come after the first release
		next := w.docs.Hold()
		release()
		release = next
		await(t, "the slots to be taken again", func() bool { return len(w.docs.Actors()) == (round+2)*slots })
	}
	if !slices.ContainsFunc(w.docs.Actors(), func(a identity.Actor) bool { return a.Workspace == other }) {
		t.Error("all free slots went to the workspace that had some")
	}
	release()
	for range flood + 1 {
		if o := w.next(t); o.GetState() != ok {
			t.Errorf("outcome = %v", o)
		}
	}
}

func TestDocumentSyncRestarts(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start(t, toolexecutor.Config{})
	away := fault.New(fault.Unavailable, "shutting down")
	w.docs.FailNext(away, away)
	if o := w.do(t, "doc_create", map[string]any{"name": "n"}); o.GetState() != ok || w.docs.Effects() != 1 {
		t.Errorf("outcome = %v with %d effects, want one", o, w.docs.Effects())
	}
}

func TestOps(t *testing.T) {
	t.Parallel()
	i := newWorld(t).start(t, toolexecutor.Config{})
	for path, want := range map[string]string{"/health": `"status":"ok"`, "/ready": `"postgres":"ok"`} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, i.url+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(res.Body)
		_ = res.Body.Close()
		if err != nil || res.StatusCode != http.StatusOK || !strings.Contains(string(body), want) {
			t.Errorf("GET %s = %d %s, %v", path, res.StatusCode, body, err)
		}
	}
	http.DefaultClient.CloseIdleConnections()
}

func BenchmarkBus(b *testing.B) {
	w := newWorld(b)
	w.start(b, toolexecutor.Config{})
	b.ReportAllocs()
	for b.Loop() {
		if o := w.do(b, "get_current_datetime", map[string]any{}); o.GetState() != ok {
			b.Fatalf("outcome = %v", o)
		}
	}
}
