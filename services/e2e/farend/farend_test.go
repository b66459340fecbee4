package farend_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"signalbox.dev/services/e2e/farend"
)

func serve(t *testing.T) (*farend.Server, *farend.Client) {
	t.Helper()
	s := farend.New()
	web := httptest.NewServer(s)
	h := &http.Client{Transport: &http.Transport{}}
	t.Cleanup(func() {
		s.Close()
		h.CloseIdleConnections()
		web.Close()
	})
	return s, farend.NewClient(web.URL, h)
}

func TestEffects(t *testing.T) {
	t.Parallel()
	s, c := serve(t)
	act := map[string]func() (farend.Effect, error){
		"pure":   func() (farend.Effect, error) { return c.Read(t.Context(), "pure") },
		"keyed":  func() (farend.Effect, error) { return c.Keyed(t.Context(), "keyed", "k", farend.Latency{}) },
		"marked": func() (farend.Effect, error) { return c.Marked(t.Context(), "marked", "m", farend.Latency{}) },
		"blind":  func() (farend.Effect, error) { return c.Blind(t.Context(), "blind", farend.Latency{}) },
	}
	if e, found, err := c.Find(t.Context(), "m"); err != nil || found {
		t.Errorf("Find before = %v, %v, %v, want nothing", e, found, err)
	}
	for name, do := range act {
		first, err := do()
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		second, err := do()
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if same := first == second; same != (name == "pure" || name == "keyed") {
			t.Errorf("%s returned %v, then %v", name, first, second)
		}
	}
	if _, found, err := c.Find(t.Context(), "m"); err != nil || !found {
		t.Errorf("Find after = %v, %v, want it found", found, err)
	}
	want := farend.Report{Operations: []farend.Operation{
		{Operation: "blind", Kind: "blind", Requests: 2, Effects: 2},
		{Operation: "keyed", Kind: "keyed", Requests: 2, Effects: 1},
		{Operation: "marked", Kind: "marked", Requests: 2, Effects: 2},
		{Operation: "pure", Kind: "pure", Requests: 2},
	}}
	noTimes := cmpopts.IgnoreFields(farend.Operation{}, "First")
	got, err := c.Report(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got, noTimes); diff != "" {
		t.Errorf("Report (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(want.Operations[1], s.Get("keyed"), noTimes); diff != "" {
		t.Errorf("Get (-want +got):\n%s", diff)
	}
	if _, err := c.Keyed(t.Context(), "x", "", farend.Latency{}); err == nil {
		t.Error("Keyed without a key worked")
	}
}

// TestClientGone checks that a request takes effect even if its client has gone.
func TestClientGone(t *testing.T) {
	t.Parallel()
	s, c := serve(t)
	hold := s.Hold(farend.Received)
	done := s.Hold(farend.Done)
	ctx, leave := context.WithCancel(t.Context())
	left := make(chan error, 1)
	go func() {
		_, err := c.Blind(ctx, "op", farend.Latency{})
		left <- err
	}()
	<-hold.Reached()
	leave()
	if err := <-left; err == nil {
		t.Error("Blind = nil after its context has ended")
	}
	if got := s.Get("op").Effects; got != 0 {
		t.Errorf("%d effects while the request is held, want 0", got)
	}
	hold.Release()
	<-done.Reached()
	if got := s.Get("op").Effects; got != 1 {
		t.Errorf("%d effects, want 1", got)
	}
	done.Release()
}

func TestLatency(t *testing.T) {
	t.Parallel()
	_, c := serve(t)
	if err := c.Set(t.Context(), farend.Settings{BeforeMS: 60_000}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := c.Blind(ctx, "slow", farend.Latency{}); err == nil {
		t.Error("Blind returned at once, want it to take a minute")
	}
	none := 0
	if _, err := c.Blind(t.Context(), "quick", farend.Latency{BeforeMS: &none}); err != nil {
		t.Errorf("Blind with its own latency = %v", err)
	}
}
