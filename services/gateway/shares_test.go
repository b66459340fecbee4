package gateway_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
)

// sharing is a world with a shared document.
type sharing struct {
	*instance
	w        *world
	document string // its path in the API
	editor   person
}

func newSharing(t *testing.T) *sharing {
	t.Helper()
	w := newWorld(t)
	s := &sharing{instance: w.gateway(t), w: w, editor: w.join(t, w.workspace, identity.Editor)}
	made := call[map[string]object](t, s.instance, w.owner, "POST", "/api/documents", `{"name":"Plan","content":"one"}`, http.StatusCreated)
	s.document = fmt.Sprint("/api/documents/", made["document"]["id"])
	return s
}

// share creates a link and returns its id and its secret.
func (s *sharing) share(t *testing.T, p person, body string) (share, secret string) {
	t.Helper()
	made := call[struct {
		Share struct{ ID string }
		Path  string
	}](t, s.instance, p, "POST", s.document+"/shares", body, http.StatusCreated)
	secret, ok := strings.CutPrefix(made.Path, "/r/")
	if !ok || len(secret) < 40 {
		t.Fatalf("the link is %q, want /r/ and a secret", made.Path)
	}
	return made.Share.ID, secret
}

func (s *sharing) refused(t *testing.T, why, secret string) {
	t.Helper()
	got := s.send(t, s.request(t, person{token: secret}, "GET", "/api/shared/events", "", nil))
	if got.status != http.StatusNotFound || !strings.Contains(got.body, "this link does not work: it was revoked, has expired, or never existed") {
		t.Errorf("%s: %d %s, want 404 and the same words for all", why, got.status, got.body)
	}
}

// shown returns the content of the next event of a shared document.
func shown(t *testing.T, s *stream) string {
	t.Helper()
	var e struct{ Type, Name, Content string }
	if err := json.Unmarshal([]byte(s.next(t).data), &e); err != nil || e.Type != "document" {
		t.Fatalf("event %+v, %v, want a document", e, err)
	}
	return e.Name + ": " + e.Content
}

// Whoever has the link reads the document as it changes, and nothing else, until it is revoked.
func TestShare(t *testing.T) {
	t.Parallel()
	s := newSharing(t)
	share, secret := s.share(t, s.editor, `{"expires_in_days":7}`)
	reader := person{token: secret}
	page := s.open(t, reader, "GET", "/api/shared/events", "")
	if got := shown(t, page); got != "Plan: one" {
		t.Errorf("the page shows %q, want the document", got)
	}
	call[object](t, s.instance, s.w.owner, "PATCH", s.document, `{"content":"two"}`, http.StatusOK)
	if got := shown(t, page); got != "Plan: two" {
		t.Errorf("after a change the page shows %q", got)
	}
	call[object](t, s.instance, s.w.owner, "PATCH", s.document, `{"name":"B"}`, http.StatusOK)
	if got := shown(t, page); got != "B: two" {
		t.Errorf("after a renaming the page shows %q", got)
	}
	for _, path := range []string{s.document, "/api/documents", "/api/me", s.document + "/shares"} {
		if got := s.send(t, s.request(t, person{token: secret, workspace: s.w.workspace}, "GET", path, "", nil)); got.status != http.StatusUnauthorized {
			t.Errorf("GET %s with a link's secret = %d, want 401", path, got.status)
		}
	}
	list := call[struct {
		Shares []struct {
			ID        string
			ExpiresAt *string `json:"expires_at"`
		}
	}](t, s.instance, s.w.owner, "GET", s.document+"/shares", "", http.StatusOK).Shares
	if len(list) != 1 || list[0].ID != share || list[0].ExpiresAt == nil {
		t.Errorf("links = %+v, want the one, which expires", list)
	}
	call[object](t, s.instance, s.w.owner, "DELETE", s.document+"/shares/"+share, "", http.StatusOK)
	_ = page.ended(t)
	s.refused(t, "revoked", secret)
	if got := s.send(t, s.request(t, s.w.owner, "DELETE", s.document+"/shares/"+share, "", nil)); got.status != http.StatusNotFound {
		t.Errorf("the second revocation = %d, want 404", got.status)
	}
	var audit []string
	for _, r := range call[struct {
		Audit []struct {
			Action, Subject, Detail string
			Member                  string `json:"member_id"`
		}
	}](t, s.instance, s.w.owner, "GET", "/api/audit", "", http.StatusOK).Audit {
		if strings.HasPrefix(r.Action, "link-") {
			audit = append(audit, strings.Join([]string{r.Action, r.Member, "/api/documents/" + r.Subject, r.Detail}, " "))
		}
	}
	want := []string{
		strings.Join([]string{"link-revoked", s.w.owner.member.String(), s.document, share}, " "),
		strings.Join([]string{"link-created", s.editor.member.String(), s.document, share}, " "),
	}
	if !slices.Equal(audit, want) {
		t.Errorf("audit = %q, want %q", audit, want)
	}
	// Without a console the answer names the path, as logs and traces see it.
	if got := s.send(t, s.request(t, person{}, "GET", "/r/"+secret, "", nil)); !strings.Contains(got.body, "no such path: /r/") || strings.Contains(got.body, secret) {
		t.Errorf("GET of the link = %s, want the secret hidden", got.body)
	}
	if strings.Contains(s.log.String(), secret) {
		t.Error("the log holds the secret")
	}
}

// Links that do not work all look the same, and a page that is open ends.
func TestShareEnds(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(t *testing.T, s *sharing){
		"the creator may no longer write": func(t *testing.T, s *sharing) {
			t.Helper()
			call[object](t, s.instance, s.w.owner, "PATCH", "/api/workspaces/"+s.w.workspace.String()+"/members/"+s.editor.member.String(), `{"role":"viewer"}`, http.StatusOK)
		},
		"the document is deleted": func(t *testing.T, s *sharing) {
			t.Helper()
			call[object](t, s.instance, s.w.owner, "DELETE", s.document, "", http.StatusOK)
		},
		"the link has expired": func(t *testing.T, s *sharing) {
			t.Helper()
			if err := s.w.db.AsSystem(t.Context(), func(ctx context.Context, tx pgx.Tx) error {
				_, err := tx.Exec(ctx, `UPDATE shares SET expires_at = now()`)
				return err
			}); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSharing(t)
			_, secret := s.share(t, s.editor, `{}`)
			page := s.open(t, person{token: secret}, "GET", "/api/shared/events", "")
			shown(t, page)
			end(t, s)
			_ = page.ended(t)
			s.refused(t, name, secret)
		})
	}
}

func TestShareIsRefused(t *testing.T) {
	t.Parallel()
	s := newSharing(t)
	viewer := s.w.join(t, s.w.workspace, identity.Viewer)
	elsewhere := s.w.join(t, id.New[id.Workspace](), identity.Owner)
	share, _ := s.share(t, s.editor, `{}`)
	for _, tt := range []struct {
		who                person
		method, path, body string
		want               int
	}{
		{viewer, "POST", s.document + "/shares", `{}`, http.StatusForbidden},
		{viewer, "GET", s.document + "/shares", "", http.StatusForbidden},
		{viewer, "DELETE", s.document + "/shares/" + share, "", http.StatusForbidden},
		{elsewhere, "POST", s.document + "/shares", `{}`, http.StatusNotFound},
		{elsewhere, "GET", s.document + "/shares", "", http.StatusNotFound},
		{elsewhere, "DELETE", s.document + "/shares/" + share, "", http.StatusNotFound},
		{s.editor, "DELETE", "/api/documents/" + share + "/shares/" + share, "", http.StatusNotFound},
		{s.editor, "POST", s.document + "/shares", `{"expires_in_days":0}`, http.StatusBadRequest},
		{s.editor, "POST", s.document + "/shares", `{"expires_in_days":366}`, http.StatusBadRequest},
		{s.editor, "DELETE", s.document + "/shares/x", "", http.StatusBadRequest},
	} {
		if got := s.send(t, s.request(t, tt.who, tt.method, tt.path, tt.body, nil)); got.status != tt.want {
			t.Errorf("%s %s %s = %d %s, want %d", tt.method, tt.path, tt.body, got.status, got.body, tt.want)
		}
	}
	s.refused(t, "nothing", "")
	s.refused(t, "unknown", "sbl_"+strings.Repeat("A", 43))
	s.refused(t, "a person's token", s.w.owner.token)
	// One address opens a bounded number.
	for range 100 {
		got := s.send(t, s.request(t, person{token: "sbl_x"}, "GET", "/api/shared/events", "", nil))
		if got.status == http.StatusTooManyRequests && got.header.Get("Retry-After") != "" {
			return
		}
	}
	t.Error("an address tried 100 links, want it limited")
}
