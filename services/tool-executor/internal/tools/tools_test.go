package tools_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"signalbox.dev/pkg/conf"
	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/rpc"
	"signalbox.dev/pkg/subject"
	"signalbox.dev/proto/signalbox/credential/v1/credentialv1connect"
	toolv1 "signalbox.dev/proto/signalbox/tool/v1"
	"signalbox.dev/services/simulator/apis"
	"signalbox.dev/services/tool-executor/internal/brokertest"
	"signalbox.dev/services/tool-executor/internal/doctest"
	"signalbox.dev/services/tool-executor/internal/egress"
	"signalbox.dev/services/tool-executor/internal/tool"
	"signalbox.dev/services/tool-executor/internal/tools"
)

// world is the catalogue with a document service behind it.
type world struct {
	docs      *doctest.Service
	apis      *apis.Server
	far       *farAnswer // answers before them
	broker    *brokertest.Broker
	web       string // the URL of a server that the browser may use
	site      http.Handler
	catalogue *tool.Catalogue
	actor     identity.Actor
}

// now is the time of every world: a Saturday.
func now() time.Time { return time.Date(2026, time.November, 21, 17, 45, 3, 0, time.UTC) }

func newWorld(t testing.TB) *world {
	t.Helper()
	w := &world{docs: doctest.New(), far: &farAnswer{}, actor: identity.Actor{
		Workspace: id.New[id.Workspace](), Member: id.New[id.Member](), Role: identity.Editor, Run: id.New[id.Run](), Session: id.New[id.Session](),
	}}
	w.apis = apis.New(apis.Config{Now: now})
	var settings tools.Settings
	if err := conf.SetDefaults(&settings); err != nil {
		t.Fatal(err)
	}
	settings.ResearchRepo = apis.Repo
	deps := tools.Deps{Settings: settings, Documents: doctest.Start(t, w.docs), Egress: w.egress(t), Now: now}
	w.openBrowser(t, &deps)
	all, err := tools.New(deps)
	if err != nil {
		t.Fatal(err)
	}
	if w.catalogue, err = tool.NewCatalogue(all...); err != nil {
		t.Fatal(err)
	}
	return w
}

// egress starts the world's broker, before the services' fakes.
func (w *world) egress(t testing.TB) *egress.Client {
	t.Helper()
	key, err := identity.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	var url string
	w.broker, url = brokertest.Start(t, w.far.before(w.apis), key)
	signer := identity.NewSigner(subject.ToolExecutor, key)
	options, err := rpc.Client{Signer: signer, Audience: subject.CredentialBroker}.ClientOptions()
	if err != nil {
		t.Fatal(err)
	}
	h := rpc.NewHTTPClient(nil)
	t.Cleanup(h.CloseIdleConnections)
	return egress.New(url, h, signer, credentialv1connect.NewConnectionServiceClient(h, url, options...))
}

// call runs a tool as the executor does: arguments checked, as the world's actor.
func (w *world) call(ctx context.Context, name, args string) (tool.Result, error) {
	return w.callAs(ctx, id.New[id.Operation](), name, args)
}

// callAs is call with a key, for calls that are repeated.
func (w *world) callAs(ctx context.Context, key id.Operation, name, args string) (tool.Result, error) {
	e, c, err := w.prepare(key, name, args)
	if err != nil {
		return tool.Result{}, err
	}
	return e.Tool.Run(identity.With(ctx, w.actor), c)
}

// verify looks up a call's effect.
func (w *world) verify(ctx context.Context, key id.Operation, name, args string) (tool.Result, bool, error) {
	e, c, err := w.prepare(key, name, args)
	if err != nil {
		return tool.Result{}, false, err
	}
	return e.Tool.(tool.Verifier).Verify(identity.With(ctx, w.actor), c)
}

func (w *world) prepare(key id.Operation, name, args string) (tool.Entry, tool.Call, error) {
	e, ok := w.catalogue.Get(name)
	if !ok {
		return e, tool.Call{}, fmt.Errorf("no tool %s", name)
	}
	checked, err := e.Check(args)
	return e, tool.Call{Key: key, Args: checked, Timezone: "Europe/Berlin", OutputCap: e.Spec.OutputCap}, err
}

// must runs a tool that succeeds and returns the fields of its result.
func (w *world) must(t *testing.T, name string, args map[string]any) map[string]any {
	t.Helper()
	b, err := json.Marshal(args)
	if err != nil {
		t.Fatal(err)
	}
	r, err := w.call(t.Context(), name, string(b))
	if err != nil || r.IsError() {
		t.Fatalf("%s(%s) = %s, %v", name, b, r.JSON(), err)
	}
	var out map[string]any
	if err := json.Unmarshal([]byte(r.JSON()), &out); err != nil {
		t.Fatal(err)
	}
	return out
}

func TestCatalogue(t *testing.T) {
	t.Parallel()
	type facts struct {
		Effect           toolv1.Effect
		Source           string
		Approval, Always bool
	}
	got := map[string]facts{}
	for _, e := range newWorld(t).catalogue.All() {
		got[e.Spec.Name] = facts{e.Spec.Effect, e.Spec.Source, e.Spec.NeedsApproval, e.Spec.Always}
		if e.Spec.Description == "" || e.Spec.Guidance == "" || strings.Contains(e.Spec.Description+e.Spec.Guidance, "```") {
			t.Errorf("%s: description %q, guidance %q", e.Spec.Name, e.Spec.Description, e.Spec.Guidance)
		}
		room := 64 << 10
		if e.Spec.ReturnsImage {
			room = 256 << 10
		}
		if e.Spec.Deadline != 30*time.Second || e.Spec.OutputCap != room {
			t.Errorf("%s: deadline %v, output cap %d, want 30s and 64 KiB, or 256 KiB with an image", e.Spec.Name, e.Spec.Deadline, e.Spec.OutputCap)
		}
	}
	pure, own := toolv1.Effect_EFFECT_PURE, toolv1.Effect_EFFECT_SAME_TX
	keyed, verify := toolv1.Effect_EFFECT_KEYED, toolv1.Effect_EFFECT_VERIFY
	want := map[string]facts{
		"get_current_datetime": {Effect: pure, Source: "built-in", Always: true},
		"doc_create":           {Effect: own, Source: "built-in"},
		"doc_read":             {Effect: pure, Source: "built-in"},
		"doc_edit":             {Effect: own, Source: "built-in"},
		"doc_append":           {Effect: own, Source: "built-in"},
		"doc_list":             {Effect: pure, Source: "built-in"},
		"doc_delete":           {Effect: own, Source: "built-in", Approval: true},
		"web_search":           {Effect: pure, Source: "provider"},

		"calendar_list_events":  {Effect: pure, Source: "built-in"},
		"calendar_create_event": {Effect: keyed, Source: "built-in", Approval: true},
		"calendar_update_event": {Effect: verify, Source: "built-in", Approval: true},
		"calendar_delete_event": {Effect: keyed, Source: "built-in", Approval: true},
		"tasks_list":            {Effect: pure, Source: "built-in"},
		"tasks_create":          {Effect: verify, Source: "built-in", Approval: true},
		"tasks_complete":        {Effect: verify, Source: "built-in", Approval: true},
		"tasks_delete":          {Effect: verify, Source: "built-in", Approval: true},
		"notion_search":         {Effect: pure, Source: "built-in"},
		"notion_read_page":      {Effect: pure, Source: "built-in"},
		"notion_append":         {Effect: verify, Source: "built-in", Approval: true},
		"read_research":         {Effect: pure, Source: "built-in"},

		"browser_open":       {Effect: pure, Source: "built-in"},
		"browser_read":       {Effect: pure, Source: "built-in"},
		"browser_screenshot": {Effect: pure, Source: "built-in"},
		"browser_click":      {Effect: toolv1.Effect_EFFECT_UNSAFE, Source: "built-in"},
		"browser_type":       {Effect: toolv1.Effect_EFFECT_UNSAFE, Source: "built-in"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("tools (-want +got):\n%s", diff)
	}
}

func TestDatetime(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, tt := range []struct {
		zone string
		want map[string]any
	}{
		{"", map[string]any{"iso": "2026-11-21T18:45:03+01:00", "date": "2026-11-21", "time": "18:45:03", "timezone": "Europe/Berlin", "utc_offset": "+01:00", "weekday": "Saturday", "unix": 1795283103.0}},
		{"UTC", map[string]any{"iso": "2026-11-21T17:45:03Z", "date": "2026-11-21", "time": "17:45:03", "timezone": "UTC", "utc_offset": "+00:00", "weekday": "Saturday", "unix": 1795283103.0}},
		{"Asia/Kathmandu", map[string]any{"iso": "2026-11-21T23:30:03+05:45", "date": "2026-11-21", "time": "23:30:03", "timezone": "Asia/Kathmandu", "utc_offset": "+05:45", "weekday": "Saturday", "unix": 1795283103.0}},
		{"Pacific/Auckland", map[string]any{"iso": "2026-11-22T06:45:03+13:00", "date": "2026-11-22", "time": "06:45:03", "timezone": "Pacific/Auckland", "utc_offset": "+13:00", "weekday": "Sunday", "unix": 1795283103.0}},
	} {
		args := map[string]any{"timezone": tt.zone}
		if tt.zone == "" {
			args = map[string]any{}
		}
		if diff := cmp.Diff(tt.want, w.must(t, "get_current_datetime", args)); diff != "" {
			t.Errorf("get_current_datetime(%q) (-want +got):\n%s", tt.zone, diff)
		}
	}
	for _, zone := range []string{"Mars/Olympus", "Local", "../etc/passwd", "/etc/passwd"} {
		r, err := w.call(t.Context(), "get_current_datetime", fmt.Sprintf(`{"timezone":%q}`, zone))
		if err != nil || !r.IsError() || !strings.Contains(r.JSON(), "is not an IANA time zone") {
			t.Errorf("get_current_datetime(%q) = %s, %v, want an error", zone, r.JSON(), err)
		}
	}
}

func TestDocuments(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	created := w.must(t, "doc_create", map[string]any{"name": "Plan", "content": "# Plan\n\na a"})
	doc, _ := created["id"].(string)
	if diff := cmp.Diff(map[string]any{"id": doc, "name": "Plan"}, created); diff != "" {
		t.Errorf("doc_create (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[string]any{"id": doc, "replacements": 2.0},
		w.must(t, "doc_edit", map[string]any{"id": doc, "old_text": "a", "new_text": "b", "replace_all": true})); diff == "" {
		t.Error("doc_edit replaced the a of Plan too: the fake counts it")
	}
	if diff := cmp.Diff(map[string]any{"id": doc}, w.must(t, "doc_append", map[string]any{"id": doc, "content": "end"})); diff != "" {
		t.Errorf("doc_append (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[string]any{"id": doc, "name": "Plan", "content": "# Plbn\n\nb b\n\nend"}, w.must(t, "doc_read", map[string]any{"id": doc})); diff != "" {
		t.Errorf("doc_read (-want +got):\n%s", diff)
	}
	told := []any{map[string]any{"line": 2.0, "what": "the HTML <kbd>", "kept_as": "text"}}
	for name, args := range map[string]map[string]any{
		"doc_create": {"name": "Keys", "content": "a\n<kbd>"},
		"doc_append": {"id": doc, "content": "a\n<kbd>"},
		"doc_edit":   {"id": doc, "old_text": "end", "new_text": "end\n<kbd>"},
	} {
		got := w.must(t, name, args)
		if diff := cmp.Diff(told, got["warnings"]); diff != "" {
			t.Errorf("%s tells (-want +got):\n%s", name, diff)
		}
		if name == "doc_create" {
			w.must(t, "doc_delete", map[string]any{"id": got["id"]})
		}
	}
	w.must(t, "doc_create", map[string]any{"name": "Other"})
	first := w.must(t, "doc_list", map[string]any{"limit": 1})
	listed, _ := first["documents"].([]any)
	if len(listed) != 1 || first["next_page_token"] == nil {
		t.Fatalf("doc_list of one = %v", first)
	}
	rest := w.must(t, "doc_list", map[string]any{"limit": 100, "page_token": first["next_page_token"]})
	listed, _ = rest["documents"].([]any)
	last, _ := listed[0].(map[string]any)
	if len(listed) != 1 || last["id"] != doc || last["name"] != "Plan" || rest["next_page_token"] != nil {
		t.Errorf("doc_list, rest = %v", rest)
	}
	if at, _ := last["updated_at"].(string); !strings.HasSuffix(at, "Z") {
		t.Errorf("updated_at = %q, want a time in UTC", at)
	}
	if diff := cmp.Diff(map[string]any{"success": true}, w.must(t, "doc_delete", map[string]any{"id": doc})); diff != "" {
		t.Errorf("doc_delete (-want +got):\n%s", diff)
	}
	for _, a := range w.docs.Actors() {
		if a.Workspace != w.actor.Workspace || a.Member != w.actor.Member || a.Run != w.actor.Run || a.Service != "tool-executor" {
			t.Errorf("document-sync was called by %+v", a)
		}
	}
}

func TestDocumentErrors(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	doc, _ := w.must(t, "doc_create", map[string]any{"name": "n", "content": "a a"})["id"].(string)
	viewer := *w
	viewer.actor.Role = identity.Viewer
	stranger := *w
	stranger.actor.Workspace = id.New[id.Workspace]()
	for _, tt := range []struct {
		w          *world
		name, args string
		kind       fault.Kind
		says       string
	}{
		{w, "doc_read", `{"id":"` + id.New[id.Document]().String() + `"}`, fault.NotFound, "doc_list shows"},
		{w, "doc_read", `{"id":"plan"}`, fault.Invalid, `"plan" is not a UUID`},
		{w, "doc_edit", `{"id":"` + doc + `","old_text":"x","new_text":"y"}`, fault.Conflict, "0 matches"},
		{w, "doc_edit", `{"id":"` + doc + `","old_text":"a","new_text":"y"}`, fault.Conflict, "2 times"},
		{w, "doc_append", `{"id":"` + doc + `","content":" "}`, fault.Invalid, "arguments.content: is empty"},
		{&viewer, "doc_append", `{"id":"` + doc + `","content":"x"}`, fault.Forbidden, "may only read"},
		{&stranger, "doc_read", `{"id":"` + doc + `"}`, fault.NotFound, "does not exist"},
		{&stranger, "doc_delete", `{"id":"` + doc + `"}`, fault.NotFound, "does not exist"},
	} {
		_, err := tt.w.call(t.Context(), tt.name, tt.args)
		if f := fault.From(err); err == nil || f.Kind != tt.kind || !strings.Contains(f.Message, tt.says) {
			t.Errorf("%s(%s) = %v, want %v %q", tt.name, tt.args, err, tt.kind, tt.says)
		}
	}
	if r, err := w.call(t.Context(), "doc_read", `{"id":"`+doc+`","page_token":"next"}`); err != nil || !strings.Contains(r.JSON(), "arguments.page_token") {
		t.Errorf("doc_read with a made-up token = %s, %v, want an error", r.JSON(), err)
	}
	if r, err := w.call(t.Context(), "web_search", `{"query":"x"}`); err != nil || !r.IsError() {
		t.Errorf("web_search = %s, %v, want an error result", r.JSON(), err)
	}
}

func TestDocReadPages(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for name, content := range map[string]string{
		"lines":       strings.Repeat("a line of text with some words\n", 10_000),
		"one line":    strings.Repeat("x", 200_000),
		"escapes":     strings.Repeat("\"\\\n\t", 50_000),
		"controls":    strings.Repeat("\x01\u2028", 30_000),
		"unicode":     strings.Repeat("äöü😀\n", 30_000),
		"no page":     "short",
		"exactly one": strings.Repeat("y", 62<<10),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			doc, _ := w.must(t, "doc_create", map[string]any{"name": name, "content": content})["id"].(string)
			var got strings.Builder
			args := map[string]any{"id": doc}
			for pages := 1; ; pages++ {
				page := w.must(t, "doc_read", args)
				text, _ := page["content"].(string)
				if b, _ := json.Marshal(page); len(b) > 64<<10 && name != "controls" { // json.Marshal escapes more than a result does
					t.Errorf("page %d has %d bytes", pages, len(b))
				}
				got.WriteString(text)
				if page["changed"] != nil {
					t.Errorf("page %d: changed = %v", pages, page["changed"])
				}
				if page["next_page_token"] == nil {
					break
				}
				if name == "lines" && !strings.HasSuffix(text, "\n") {
					t.Errorf("page %d ends within a line: %q", pages, text[len(text)-20:])
				}
				if pages > 20 {
					t.Fatal("the pages do not end")
				}
				args["page_token"] = page["next_page_token"]
			}
			if got.String() != content {
				t.Errorf("the pages hold %d bytes, want the document's %d", got.Len(), len(content))
			}
		})
	}
}

func TestDocReadOfADocumentThatChanges(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	doc, _ := w.must(t, "doc_create", map[string]any{"name": "n", "content": strings.Repeat("ü\n", 40_000)})["id"].(string)
	first := w.must(t, "doc_read", map[string]any{"id": doc})
	w.must(t, "doc_edit", map[string]any{"id": doc, "old_text": "ü", "new_text": "uex", "replace_all": true})
	second := w.must(t, "doc_read", map[string]any{"id": doc, "page_token": first["next_page_token"]})
	if text, _ := second["content"].(string); second["changed"] != true || !utf8.ValidString(text) {
		t.Errorf("the second page after a change: changed = %v, %d bytes", second["changed"], len(text))
	}
	for _, token := range []string{"99999999.1", "1.1"} { // behind the end; within a character
		if r, err := w.call(t.Context(), "doc_read", `{"id":"`+doc+`","page_token":"`+token+`"}`); err != nil || r.IsError() {
			t.Errorf("doc_read from %s = %s, %v", token, r.JSON(), err)
		}
	}
}

// TestTrust lists what each tool means for the trust of a conversation (docs/security.md), so that
// nobody adds a tool without having thought about it.
func TestTrust(t *testing.T) {
	t.Parallel()
	const reads, acts = "untrusted private", "outside asks"
	want := map[string]string{
		"calendar_list_events": reads, "tasks_list": reads, "notion_search": reads, "notion_read_page": reads, "read_research": reads,
		"doc_read": reads, "doc_list": reads, // agents may have copied text of strangers
		"web_search": "untrusted",
		// The browser of this world reaches a private address: see TestTrustInPublicPages.
		"browser_read": reads, "browser_screenshot": reads,
		// An address, a click or a key can tell a server what the model knows.
		"browser_open": reads + " outside", "browser_click": reads + " outside", "browser_type": reads + " outside",
		"calendar_create_event": acts, "calendar_delete_event": acts, "tasks_create": acts, "tasks_delete": acts, "notion_append": acts,
		"calendar_update_event": reads + " " + acts, "tasks_complete": reads + " " + acts, // they return what is there
		"doc_delete": "asks", "doc_create": "", "doc_edit": "", "doc_append": "", "get_current_datetime": "",
	}
	got := map[string]string{}
	for _, e := range newWorld(t).catalogue.All() {
		var all []string
		for _, f := range []struct {
			is   bool
			name string
		}{{e.Spec.ReadsUntrusted, "untrusted"}, {e.Spec.ReadsPrivate, "private"}, {e.Spec.ActsOutside, "outside"}, {e.Spec.NeedsApproval, "asks"}} {
			if f.is {
				all = append(all, f.name)
			}
		}
		got[e.Spec.Name] = strings.Join(all, " ")
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("trust (-want +got):\n%s", diff)
	}
}

// TestTrustInPublicPages lists the same for a browser that reaches public addresses only.
func TestTrustInPublicPages(t *testing.T) {
	t.Parallel()
	all, err := tools.New(tools.Deps{Documents: doctest.Start(t, doctest.New()), Egress: &egress.Client{}})
	if err != nil {
		t.Fatal(err)
	}
	pages := 0
	for _, one := range all {
		if s := one.Spec(); strings.HasPrefix(s.Name, "browser_") {
			pages++
			if !s.ReadsUntrusted || s.ReadsPrivate {
				t.Errorf("%s reads untrusted %v, private %v; want true, false", s.Name, s.ReadsUntrusted, s.ReadsPrivate)
			}
		}
	}
	if pages != 5 {
		t.Errorf("the browser has %d tools, want 5", pages)
	}
}

// TestEveryToolAlwaysAnswersJSON calls every tool with arguments of every kind.
func TestEveryToolAlwaysAnswersJSON(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	doc, _ := w.must(t, "doc_create", map[string]any{"name": "n", "content": "a \x01\u2028 b"})["id"].(string)
	hostile := []any{
		nil, "", true, 1, -1, 1e300, 0.5, doc, "not a uuid", "a\x00b", "\x1b[31m", "\u2028", "a\xff", `\ud800`, "😀",
		[]any{},
		map[string]any{"a": 1},
		strings.Repeat("x", 1<<20), "Europe/Berlin", "Local", "1.1", "-5.7", "9223372036854775808.1",
	}
	for _, e := range w.catalogue.All() {
		t.Run(e.Spec.Name, func(t *testing.T) {
			t.Parallel()
			var schema struct {
				Properties map[string]any `json:"properties"`
			}
			if err := json.Unmarshal(e.Spec.InputSchema, &schema); err != nil {
				t.Fatal(err)
			}
			rapid.Check(t, func(rt *rapid.T) {
				args := map[string]any{}
				for name := range schema.Properties {
					if v := rapid.SampledFrom(append(hostile, "left out")).Draw(rt, name); v != "left out" {
						args[name] = v
					}
				}
				b, err := json.Marshal(args)
				if err != nil {
					rt.Fatal(err)
				}
				r, err := w.call(context.WithoutCancel(t.Context()), e.Spec.Name, string(b))
				if err != nil {
					f := fault.From(err)
					if f.Kind == fault.Internal {
						rt.Fatalf("%s(%.200s) = %v, which tells the model nothing", e.Spec.Name, b, err)
					}
					r = tool.Errorf("x", "%s", f.Message)
				}
				var fields map[string]any
				if err := json.Unmarshal([]byte(r.JSON()), &fields); err != nil || fields == nil || !utf8.ValidString(r.JSON()) || len(r.JSON()) > 64<<10 {
					rt.Fatalf("%s(%.200s) = %.200s (%d bytes): %v", e.Spec.Name, b, r.JSON(), len(r.JSON()), err)
				}
				if r.IsError() == (fields["error"] == nil && fields["ok"] != false) {
					rt.Fatalf("%s(%.200s): IsError %v with %.200s", e.Spec.Name, b, r.IsError(), r.JSON())
				}
			})
		})
	}
}
