package tools_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"signalbox.dev/pkg/fault"
)

func TestTasks(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	list := func(args map[string]any) map[string]any { return w.must(t, "tasks_list", args) }
	want := []string{"Send the offer to Priya", "Book a train to Hamburg", "Read the draft of the security review", "Renew the passport"}
	if diff := cmp.Diff(want, titles(list(map[string]any{}), "tasks", "title")); diff != "" {
		t.Errorf("tasks_list (-want +got):\n%s", diff)
	}
	first := list(map[string]any{"max_results": 3, "include_completed": true})
	rest := list(map[string]any{"max_results": 3, "include_completed": true, "page_token": first["next_page_token"]})
	if diff := cmp.Diff([]string{"needsAction", "completed"}, titles(rest, "tasks", "status")); diff != "" || rest["next_page_token"] != nil {
		t.Errorf("the last page (-want +got):\n%s\n%v", diff, rest)
	}
	created := w.must(t, "tasks_create", map[string]any{"title": "Buy tea", "notes": "Green.", "due": "2026-11-30"})
	task, _ := created["id"].(string)
	if diff := cmp.Diff(map[string]any{"id": task, "title": "Buy tea", "status": "needsAction", "due": "2026-11-30", "simulated": true}, created); diff != "" {
		t.Errorf("tasks_create (-want +got):\n%s", diff)
	}
	// The marker is in the notes for the service, and is not shown to the model.
	got := list(map[string]any{"max_results": 1, "include_notes": true})
	if diff := cmp.Diff([]string{"Green."}, titles(got, "tasks", "notes")); diff != "" {
		t.Errorf("notes (-want +got):\n%s", diff)
	}
	if got := w.must(t, "tasks_complete", map[string]any{"id": task}); got["status"] != "completed" || got["title"] != "Buy tea" {
		t.Errorf("tasks_complete = %v", got)
	}
	w.must(t, "tasks_delete", map[string]any{"id": "seedtask0"})
	if diff := cmp.Diff(want[1:], titles(list(map[string]any{}), "tasks", "title")); diff != "" {
		t.Errorf("tasks_list after the changes (-want +got):\n%s", diff)
	}
	for name, args := range map[string]string{"tasks_delete": `{"id":"nothing"}`, "tasks_complete": `{"id":"nothing"}`, "tasks_list": `{"list_id":"nothing"}`} {
		if _, err := w.call(t.Context(), name, args); fault.KindOf(err) != fault.NotFound {
			t.Errorf("%s(%s) = %v, want NotFound", name, args, err)
		}
	}
	if _, err := w.call(t.Context(), "tasks_create", `{"title":"x","due":"2026-13-45"}`); fault.KindOf(err) != fault.Invalid || !strings.Contains(err.Error(), "arguments.due") {
		t.Errorf("a day that does not exist = %v", err)
	}
}
