package e2e_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"signalbox.dev/services/e2e/world"
)

// TestClientToolSurvivesKills kills Signalbox while a run waits for its client, and again as soon
// as the result is taken. The run goes on with that result.
func TestClientToolSurvivesKills(t *testing.T) {
	t.Parallel()
	s := newSolo(t, "")
	tools := []map[string]any{{"name": "locate", "description": "Where the user is.", "input_schema": map[string]any{"type": "object"}}}
	s.until("the tool is declared", func() error {
		return s.client.Call(t.Context(), world.Request{Method: http.MethodPatch, Path: "/api/sessions/" + s.session, Body: map[string]any{"client_tools": tools}}, nil)
	})
	run := s.submit(`call the tool locate with {"exact": true}`)
	var details struct {
		Run       struct{ State string }
		ToolCalls []struct {
			ID     string `json:"tool_call_id"`
			Until  string `json:"result_expires_at"`
			Result string
		} `json:"tool_calls"`
	}
	waits := func() error {
		err := s.client.Call(t.Context(), world.Request{Method: http.MethodGet, Path: "/api/runs/" + run}, &details)
		if err == nil && (details.Run.State != "waiting" || len(details.ToolCalls) != 1 || details.ToolCalls[0].Until == "") {
			err = fmt.Errorf("the run is %+v", details)
		}
		return err
	}
	s.until("the run waits", waits)
	kill := func() {
		t.Helper()
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
	}
	kill()
	s.until("the run waits again", waits)
	send := func() error {
		return s.client.Call(t.Context(), world.Request{
			Method: http.MethodPost, Path: "/api/sessions/" + s.session + "/tool-results/" + details.ToolCalls[0].ID, Body: map[string]any{"output": "Paris"},
		}, nil)
	}
	s.until("the result is taken", send)
	kill()
	s.until("the result is taken again", send)
	s.ends(run)
	s.until("the run is read", func() error {
		return s.client.Call(t.Context(), world.Request{Method: http.MethodGet, Path: "/api/runs/" + run}, &details)
	})
	if got := details.ToolCalls[0].Result; got != `{"output":"Paris"}` {
		t.Errorf("the call has the result %s", got)
	}
	var session struct{ Messages []struct{ Content any } }
	s.until("the session is read", func() error {
		return s.client.Call(t.Context(), world.Request{Method: http.MethodGet, Path: "/api/sessions/" + s.session}, &session)
	})
	if said := fmt.Sprint(session.Messages); !strings.Contains(said, "The tools answered:") || !strings.Contains(said, "Paris") {
		t.Errorf("the model is not told the result: %s", said)
	}
}
