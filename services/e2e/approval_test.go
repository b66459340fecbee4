package e2e_test

import (
	"fmt"
	"net/http"
	"testing"

	"signalbox.dev/services/e2e/world"
)

// TestApprovalSurvivesKill kills Signalbox while a run waits for a person. The run waits
// afterwards, and goes on once it is approved.
func TestApprovalSurvivesKill(t *testing.T) {
	t.Parallel()
	s := newSolo(t, "")
	s.ends(s.submit("create a document about nettle tea"))
	run := s.submit("delete it")
	waits := func() error {
		r, err := s.client.Run(t.Context(), run)
		if err == nil && r.State != "waiting" {
			err = fmt.Errorf("the run is %s", r.State)
		}
		return err
	}
	s.until("the run waits", waits)
	p := s.w.Proc(world.Standalone)
	if err := p.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := p.Restart(); err != nil {
		t.Fatal(err)
	}
	if err := p.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.until("the run waits again", waits)
	var list struct {
		Approvals []struct {
			ToolCallID string `json:"tool_call_id"`
		}
	}
	s.until("the approvals are listed", func() error {
		return s.client.Call(t.Context(), world.Request{Method: http.MethodGet, Path: "/api/approvals?session_id=" + s.session}, &list)
	})
	if len(list.Approvals) != 1 {
		t.Fatalf("%d calls wait, want one", len(list.Approvals))
	}
	s.until("the call is approved", func() error {
		return s.client.Call(t.Context(), world.Request{
			Method: http.MethodPost, Path: "/api/sessions/" + s.session + "/approvals/" + list.Approvals[0].ToolCallID, Body: map[string]any{"approved": true},
		}, nil)
	})
	s.ends(run)
	var docs struct {
		Documents []struct{ Name string }
	}
	if err := s.client.Call(t.Context(), world.Request{Method: http.MethodGet, Path: "/api/documents"}, &docs); err != nil || len(docs.Documents) != 0 {
		t.Errorf("documents = %v, %v, want none: it was deleted", docs, err)
	}
}
