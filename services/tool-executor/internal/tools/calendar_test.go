package tools_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	credentialv1 "signalbox.dev/proto/signalbox/credential/v1"
	"signalbox.dev/services/simulator/apis"
	"signalbox.dev/services/tool-executor/internal/tool"
)

// titles returns a field of every element of a list in a result.
func titles(result map[string]any, list, field string) (all []string) {
	items, _ := result[list].([]any)
	for _, e := range items {
		o, _ := e.(map[string]any)
		all = append(all, fmt.Sprint(o[field]))
	}
	return all
}

func TestCalendarListEvents(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for name, tt := range map[string]struct {
		args map[string]any
		want []string
	}{
		"a day":               {map[string]any{"start_date": "2026-11-21", "end_date": "2026-11-21"}, []string{"Stand-up", "Dentist"}},
		"a day as start, end": {map[string]any{"start": "2026-11-21", "end": "2026-11-21"}, []string{"Stand-up", "Dentist"}},
		"a day far away":      {map[string]any{"start_date": "2026-11-21", "end_date": "2026-11-21", "timezone": "Pacific/Kiritimati"}, []string{"Demo for the board", "Stand-up"}},
		// Google counts the holiday's day in another zone, and lists it.
		"a day that has begun": {map[string]any{"start_date": "2026-11-25", "end_date": "2026-11-25", "timezone": "Pacific/Kiritimati"}, []string{"Interview: back-end engineer"}},
		"times":                {map[string]any{"start": "2026-11-21T18:00:00+01:00", "end": "2026-11-22T10:00:00+01:00"}, []string{"Dentist"}},
		"the next week":        {map[string]any{}, []string{"Dentist", "Stand-up", "Lunch with Priya", "Planning: next quarter", "Li is on holiday", "Interview: back-end engineer", "Review of the week"}},
		"words":                {map[string]any{"query": "priya"}, []string{"Lunch with Priya"}},
		"nothing":              {map[string]any{"start_date": "2020-01-01", "end_date": "2020-01-02"}, nil},
		"by the mail address":  {map[string]any{"calendar_id": "you@example.com", "query": "holiday"}, []string{"Li is on holiday"}},
	} {
		got := w.must(t, "calendar_list_events", tt.args)
		if diff := cmp.Diff(tt.want, titles(got, "events", "title")); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		if got["simulated"] != true {
			t.Errorf("%s does not say that it is simulated", name)
		}
	}
}

func TestCalendarListEventsGivesWhatIsAskedFor(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	args := map[string]any{"query": "planning"}
	event := func() map[string]any {
		return w.must(t, "calendar_list_events", args)["events"].([]any)[0].(map[string]any)
	}
	want := map[string]any{"id": "seed00005", "title": "Planning: next quarter", "start": "2026-11-23T10:00:00Z", "end": "2026-11-23T11:30:00Z"}
	if diff := cmp.Diff(want, event()); diff != "" {
		t.Errorf("an event (-want +got):\n%s", diff)
	}
	args["include_description"], args["include_location"], args["include_attendees"], args["include_link"] = true, true, true, true
	e := event()
	if d, _ := e["description"].(string); len([]rune(d)) > 141 || !strings.HasSuffix(d, "…") {
		t.Errorf("description = %q, want 140 characters", d)
	}
	if e["location"] != "Room Atlantic" || e["link"] == nil || len(e["attendees"].([]any)) != 3 {
		t.Errorf("event with everything = %v", e)
	}
	args["truncate_description"] = 10
	if d := event()["description"]; d != "Bring numb…" {
		t.Errorf("description of 10 characters = %q", d)
	}
}

func TestCalendarListEventsPages(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	args := map[string]any{"start_date": "2026-11-01", "end_date": "2026-12-31", "max_results": 4}
	var got []string
	for pages := 0; ; pages++ {
		page := w.must(t, "calendar_list_events", args)
		got = append(got, titles(page, "events", "id")...)
		if page["next_page_token"] == nil {
			break
		}
		if args["page_token"] = page["next_page_token"]; pages > 5 {
			t.Fatal("the pages do not end")
		}
	}
	if len(got) != 10 || got[0] != "seed00000" || got[9] != "seed00009" {
		t.Errorf("the pages hold %v", got)
	}
	args["page_token"] = "made up"
	b, _ := json.Marshal(args)
	if _, err := w.call(t.Context(), "calendar_list_events", string(b)); fault.KindOf(err) != fault.Invalid || !strings.Contains(err.Error(), "page token") {
		t.Errorf("a made-up page token = %v", err)
	}
	delete(args, "page_token")
	args["max_results"] = 250 // over what the operator allows
	if page := w.must(t, "calendar_list_events", args); len(page["events"].([]any)) != 10 {
		t.Errorf("max_results 250 = %v", page)
	}
}

func TestCalendarChanges(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	created := w.must(t, "calendar_create_event", map[string]any{"title": "Tea", "start": "2026-11-25T16:00:00+01:00", "location": "Kitchen", "attendees": []string{"a@example.com"}})
	event, _ := created["id"].(string)
	want := map[string]any{"id": event, "title": "Tea", "start": "2026-11-25T16:00:00+01:00", "end": "2026-11-25T17:00:00+01:00", "simulated": true, "link": created["link"]}
	if diff := cmp.Diff(want, created); diff != "" {
		t.Errorf("calendar_create_event (-want +got):\n%s", diff)
	}
	moved := w.must(t, "calendar_update_event", map[string]any{"id": event, "start": "2026-11-26T09:30:00+01:00", "title": "Coffee"})
	if moved["title"] != "Coffee" || moved["start"] != "2026-11-26T09:30:00+01:00" || moved["end"] != "2026-11-26T10:30:00+01:00" {
		t.Errorf("calendar_update_event = %v, want it to keep its length", moved)
	}
	if days := w.must(t, "calendar_update_event", map[string]any{"id": event, "start": "2026-11-26"}); days["start"] != "2026-11-26" || days["end"] != "2026-11-27" {
		t.Errorf("an event that now takes the day = %v", days)
	}
	if got := w.must(t, "calendar_list_events", map[string]any{"query": "coffee", "include_location": true, "start_date": "2026-11-26", "end_date": "2026-11-26"}); titles(got, "events", "location")[0] != "Kitchen" {
		t.Errorf("the changed event = %v", got)
	}
	if diff := cmp.Diff(map[string]any{"success": true, "simulated": true}, w.must(t, "calendar_delete_event", map[string]any{"id": event})); diff != "" {
		t.Errorf("calendar_delete_event (-want +got):\n%s", diff)
	}
	w.must(t, "calendar_delete_event", map[string]any{"id": event}) // as a repetition of the call would
	if _, err := w.call(t.Context(), "calendar_update_event", `{"id":"`+event+`","title":"x"}`); fault.KindOf(err) != fault.NotFound {
		t.Errorf("calendar_update_event of a deleted event = %v", err)
	}
	for args, says := range map[string]string{
		`{"title":"x","start":"tomorrow at ten"}`:                                              "arguments.start",
		`{"title":"x","start":"2026-11-25","end":"2026-11-25T10:00:00Z"}`:                      "both be dates",
		`{"title":"x","start":"2026-11-25","end":"2026-11-25"}`:                                "arguments.end",
		`{"title":"x","start":"2026-11-25T10:00:00Z","timezone":"Mars/Olympus"}`:               "arguments.timezone",
		`{"title":"x","start":"2026-11-25T10:00:00Z","calendar_id":"../../../drive/v3/files"}`: "is not an id",
	} {
		if _, err := w.call(t.Context(), "calendar_create_event", args); fault.KindOf(err) != fault.Invalid || !strings.Contains(err.Error(), says) {
			t.Errorf("calendar_create_event(%s) = %v, want %q", args, err, says)
		}
	}
	if _, err := w.call(t.Context(), "calendar_delete_event", `{"id":".."}`); fault.KindOf(err) != fault.Invalid {
		t.Errorf("calendar_delete_event of a folder above = %v", err)
	}
	if _, err := w.call(t.Context(), "calendar_delete_event", `{"id":"nothing"}`); fault.KindOf(err) != fault.NotFound {
		t.Errorf("calendar_delete_event of nothing = %v", err)
	}
}

// TestCalendarEffectsHappenOnce makes Google fail after it has done what it was asked for.
func TestCalendarEffectsHappenOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const tea = `{"title":"Tea","start":"2026-11-25T16:00:00Z"}`
	count := func(query string) int {
		return len(w.must(t, "calendar_list_events", map[string]any{"query": query})["events"].([]any))
	}
	for _, f := range []apis.Fault{{Status: http.StatusServiceUnavailable, Reason: "backendError"}, {Drop: true, Status: 500}} {
		w := newWorld(t)
		f.Provider, f.After = "google", true
		w.apis.Fail(f)
		key := id.New[id.Operation]()
		if _, err := w.callAs(t.Context(), key, "calendar_create_event", tea); fault.KindOf(err) != fault.Unavailable {
			t.Errorf("calendar_create_event whose answer was lost (%+v) = %v, want Unavailable", f, err)
		}
		r, err := w.callAs(t.Context(), key, "calendar_create_event", tea)
		if err != nil || r.IsError() || !strings.Contains(r.JSON(), `"title":"Tea"`) {
			t.Errorf("the repetition = %s, %v", r.JSON(), err)
		}
		if got := w.must(t, "calendar_list_events", map[string]any{"query": "tea"}); len(got["events"].([]any)) != 1 {
			t.Errorf("after a repetition: %v, want one event", got)
		}
	}
	key, update := id.New[id.Operation](), `{"id":"seed00004","title":"Lunch with nobody"}`
	if _, found, err := w.verify(t.Context(), key, "calendar_update_event", update); err != nil || found {
		t.Errorf("an update before it ran: found %v, %v", found, err)
	}
	if _, err := w.callAs(t.Context(), key, "calendar_update_event", update); err != nil {
		t.Fatal(err)
	}
	w.must(t, "calendar_update_event", map[string]any{"id": "seed00004", "location": "Home"}) // another call
	if r, found, err := w.verify(t.Context(), key, "calendar_update_event", update); err != nil || !found || !strings.Contains(r.JSON(), "Lunch with nobody") {
		t.Errorf("an update after it ran: %s, found %v, %v", r.JSON(), found, err)
	}
	if n := count("lunch with nobody"); n != 1 {
		t.Errorf("%d events, want 1", n)
	}
}

func TestServiceErrors(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		fault apis.Fault
		kind  fault.Kind
		says  string
		cause *tool.Cause
	}{
		"rate limit": {
			apis.Fault{Status: 403, Reason: "rateLimitExceeded", RetryAfter: "60"},
			fault.Conflict, "no more requests for now: Rate Limit Exceeded; try again in 1m0s",
			&tool.Cause{Code: tool.RateLimited, Service: "google", Reason: "Rate Limit Exceeded; try again in 1m0s"},
		},
		"429": {
			apis.Fault{Status: 429, Reason: "rateLimitExceeded", RetryAfter: "60"},
			fault.Conflict, "try again in 1m0s",
			&tool.Cause{Code: tool.RateLimited, Service: "google", Reason: "Rate Limit Exceeded; try again in 1m0s"},
		},
		"expired, not renewable": {
			apis.Fault{Status: 401, Reason: "authError"},
			fault.Forbidden, "a person connects it again at /api/connections",
			&tool.Cause{Code: tool.ConnectionRefused, Service: "google", Reason: "Invalid Credentials"},
		},
		"forbidden":  {apis.Fault{Status: 403, Reason: "forbidden"}, fault.Forbidden, "Google does not allow this: Forbidden", nil},
		"failure":    {apis.Fault{Status: 500, Reason: "backendError"}, fault.Unavailable, "failed with status 500", nil},
		"broken off": {apis.Fault{Drop: true, Status: 500}, fault.Unavailable, "does not answer", nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			tt.fault.Provider = "google"
			w.apis.Fail(tt.fault)
			_, err := w.call(t.Context(), "calendar_list_events", "{}")
			if f := fault.From(err); f.Kind != tt.kind || !strings.Contains(f.Message, tt.says) {
				t.Errorf("error = %v, want %v %q", err, tt.kind, tt.says)
			}
			got, _ := errors.AsType[*tool.Cause](err)
			if diff := cmp.Diff(tt.cause, got); diff != "" {
				t.Errorf("its cause (-want +got):\n%s", diff)
			}
		})
	}
	w := newWorld(t)
	w.apis.Fail(apis.Fault{Provider: "google", Status: 429, RetryAfter: "0", Times: 2}) // a short wait is no error
	w.must(t, "calendar_list_events", map[string]any{})
	w.broker.Set("google", credentialv1.ConnectionState_CONNECTION_STATE_NOT_CONNECTED)
	if _, err := w.call(t.Context(), "calendar_list_events", "{}"); fault.From(err).Code != "NOT_CONNECTED" || !strings.Contains(err.Error(), "a person connects it at /api/connections") {
		t.Errorf("without an account = %v", err)
	}
}
