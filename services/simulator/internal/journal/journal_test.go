package journal_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"signalbox.dev/services/simulator/internal/journal"
)

func clock() time.Time { return time.Unix(1000, 0).UTC() }

func incoming(header ...string) *http.Request {
	r := httptest.NewRequest(http.MethodPost, "/v1/messages?beta=true", nil)
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	return r
}

// TestEntry checks what is kept of a request, and that its end counts once.
func TestEntry(t *testing.T) {
	t.Parallel()
	j := journal.New(10, clock)
	x := j.Begin(incoming("Authorization", "Bearer secret", "X-Api-Key", "secret", "X-Other", "plain"), "req_1")
	x.Body([]byte(`{"a":1}`))
	x.Asked("anthropic", "m", "s", "r", true)
	if c := j.Counts(); c.Open != 1 || c.Streams != 1 {
		t.Errorf("while it is answered: %+v", c)
	}
	x.End(journal.ClientLeft, 0, 0)
	x.End(journal.Complete, 200, 77) // the handler notices later
	at := clock()
	want := []journal.Entry{{
		Seq: 1, ID: "req_1", At: at, Method: "POST", Path: "/v1/messages?beta=true",
		Header: map[string][]string{
			"Authorization": {"Bearer " + journal.HashCredential("secret")}, "X-Api-Key": {journal.HashCredential("secret")}, "X-Other": {"plain"},
		},
		Body: []byte(`{"a":1}`), BodyBytes: 7, Dialect: "anthropic", Model: "m", Script: "s", Rule: "r", Stream: true,
		Status: 200, Ended: journal.ClientLeft, EndedAt: &at, Bytes: 77,
	}}
	unexported := cmp.FilterPath(func(p cmp.Path) bool { return p.Last().String() == ".kept" || p.Last().String() == ".dropped" }, cmp.Ignore())
	if diff := cmp.Diff(want, j.Requests("", 0), unexported); diff != "" {
		t.Errorf("entries (-want +got):\n%s", diff)
	}
	if c := j.Counts(); c.Open != 0 || c.ClientLeft != 1 || c.Complete != 0 || len(c.Cuts) != 1 || c.Cuts[0].ID != "req_1" {
		t.Errorf("counts = %+v, want one cut", c)
	}
}

// TestBounds checks that neither many nor large requests are all kept.
func TestBounds(t *testing.T) {
	t.Parallel()
	j := journal.New(200, clock)
	body := []byte(`"` + strings.Repeat("x", 250<<10) + `"`)
	for n := range 300 {
		x := j.Begin(incoming(), fmt.Sprint(n))
		x.Body(body)
		x.End(journal.Complete, 200, 1)
	}
	got := j.Requests("", 0)
	kept := 0
	for _, e := range got {
		kept += len(e.Body)
	}
	if len(got) != 200 || kept > 16<<20 || kept < 15<<20 {
		t.Errorf("kept %d requests with %d bytes, want 200 with at most 16 MiB", len(got), kept)
	}
	if last := got[len(got)-1]; last.ID != "299" || len(last.Body) != len(body) {
		t.Errorf("the last is %s with %d bytes, want 299, whole", last.ID, len(last.Body))
	}
	x := j.Begin(incoming(), "long")
	x.Body([]byte(strings.Repeat("x", 300<<10)))
	if last := j.Requests("", 1)[0]; last.Body != nil || len(last.BodyText) != 1024 || last.BodyBytes != 300<<10 {
		t.Errorf("a long body is kept as %d and %d bytes of %d", len(last.Body), len(last.BodyText), last.BodyBytes)
	}
	j.Reset("")
	x.Body(body) // no longer kept: not counted either
	x.End(journal.Broken, 200, 0)
	if c := j.Counts(); c.Open != 0 || c.Requests != 0 || c.Broken != 1 || len(j.Requests("", 0)) != 0 {
		t.Errorf("after Reset: %+v", c)
	}
}

// TestWait checks that a change wakes those who wait, and the context those who
// wait in vain.
func TestWait(t *testing.T) {
	t.Parallel()
	j := journal.New(10, clock)
	got := make(chan journal.Counts)
	go func() { got <- j.Wait(t.Context(), 0) }()
	j.Begin(incoming(), "a")
	if c := <-got; c.Requests != 1 {
		t.Errorf("woken with %+v", c)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if c := j.Wait(ctx, 1000); c.Requests != 1 {
		t.Errorf("after the context ended: %+v", c)
	}
}
