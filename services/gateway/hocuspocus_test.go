package gateway_test

import (
	"bytes"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"

	"signalbox.dev/services/gateway"
)

// text encodes a string like lib0.
func text(s string) string {
	var b []byte
	n := len(s)
	for ; n >= 0x80; n >>= 7 {
		b = append(b, byte(n)|0x80)
	}
	return string(append(b, byte(n))) + s
}

func authMessage(document, token string) string { return text(document) + "\x02\x00" + text(token) }

// TestHocuspocusToken checks that the token in a provider's first messages is used, and that these
// messages reach document-sync unchanged.
func TestHocuspocusToken(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.gateway(t)
	for name, before := range map[string][]string{
		"at once":               nil,
		"behind other messages": {text("doc") + "\x00\x00\x01\x00", text("other") + "\x01\x02\x00\x00", text("") + "\x02\x01" + text("odd")},
		"behind a big message":  {text("doc") + "\x00" + strings.Repeat("x", 40<<10)},
	} {
		c := in.dial(t, person{workspace: w.workspace}, "/ws/hocuspocus", nil)
		if err := c.WriteControl(websocket.PingMessage, []byte("p"), time.Now().Add(patience)); err != nil {
			t.Fatal(err)
		}
		messages := append(before, authMessage("doc", w.owner.token), text("doc")+"\x00\x00\x01\x00", authMessage("other", "x"))
		for _, m := range messages {
			transmit(t, c, m) // the big one in several frames
		}
		if got := string(receive(t, c)); got != hello {
			t.Fatalf("%s: first message = %q, want %q", name, got, hello)
		}
		s := w.sync.seat(t)
		if s.actor.Member != w.owner.member || s.actor.Role != identity.Owner || s.actor.Workspace != w.workspace {
			t.Errorf("%s: actor = %+v, want the owner", name, s.actor)
		}
		if s.opening.Expires == 0 || s.opening.Path != "/ws/hocuspocus" {
			t.Errorf("%s: document-sync was asked %+v", name, s.opening)
		}
		for i, want := range messages {
			if got := receive(t, c); string(got) != want { // the fake sends it back
				t.Errorf("%s: message %d came back as %q, want %q", name, i, got, want)
			}
		}
	}
	if strings.Contains(in.log.String(), w.owner.token) {
		t.Error("log of the gateway holds the token")
	}
}

func TestHocuspocusKey(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.gateway(t)
	key := call[map[string]any](t, in, w.owner, "POST", "/api/keys", `{"name":"k","role":"viewer"}`, http.StatusCreated)
	secret, _ := key["secret"].(string)
	c := in.dial(t, person{}, "/ws/hocuspocus", nil) // a key brings its workspace along
	transmit(t, c, authMessage("doc", secret))
	receive(t, c)
	if s := w.sync.seat(t); s.actor.Workspace != w.workspace || s.actor.Role != identity.Viewer {
		t.Errorf("actor = %+v, want a viewer of the key's workspace", s.actor)
	}
}

func TestHocuspocusRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.gateway(t, func(c *gateway.Config) { c.Relay.TokenWait = 2 * time.Second })
	stranger := w.join(t, id.New[id.Workspace](), identity.Owner)
	sync := text("doc") + "\x00\x00\x01\x00"
	for name, tt := range map[string]struct {
		send   []string
		code   int
		says   string
		denied bool
	}{
		"nothing":            {nil, 4401, "no token", false},
		"no token":           {[]string{sync}, 4401, "no token", false},
		"an empty token":     {[]string{authMessage("doc", "")}, 4401, "no token", true},
		"a bad token":        {[]string{authMessage("doc", "x")}, 4401, "sign in again", true},
		"a stranger's token": {[]string{authMessage("doc", stranger.token)}, 4403, "not a member", true},
		"too many messages":  {[]string{sync, sync, sync, sync, sync, sync, sync, sync, sync, sync, sync, sync, sync, sync, sync, sync, sync}, 4401, "no token", false},
		"too much":           {[]string{text("doc") + "\x00" + strings.Repeat("x", 40<<10), text("doc") + "\x00" + strings.Repeat("x", 40<<10)}, 1009, "", false},
		"a big message":      {[]string{text("doc") + "\x00" + strings.Repeat("x", 80<<10)}, 1009, "", false},
		"not Hocuspocus":     {[]string{"\xff"}, 1007, "Hocuspocus", false},
		"a cut token":        {[]string{text("doc") + "\x02\x00\x30abc"}, 1007, "Hocuspocus", false},
		"an empty message":   {[]string{""}, 1007, "Hocuspocus", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := in.dial(t, person{workspace: w.workspace}, "/ws/hocuspocus", nil)
			for _, m := range tt.send {
				_ = c.WriteMessage(websocket.BinaryMessage, []byte(m)) // it may be closed already
			}
			if tt.denied {
				got := receive(t, c)
				if want := text("doc") + "\x02\x01"; !bytes.HasPrefix(got, []byte(want)) || !strings.Contains(string(got), tt.says) {
					t.Errorf("first message = %q, want that permission is denied", got)
				}
			}
			wantClosed(t, name, c, tt.code, tt.says)
		})
	}
}
