package gateway_test

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

func TestTmpSlowBody(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.gateway(t)
	conn, err := net.Dial("tcp", strings.TrimPrefix(in.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	start := time.Now()
	fmt.Fprintf(conn, "POST /api/sessions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\nAuthorization: Bearer %s\r\nX-Workspace-Id: %s\r\n\r\n{", w.owner.token, w.workspace)
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	t.Log(time.Since(start), res, err)
}

func TestTmpLongWait(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.gateway(t)
	session := in.newSession(t, w.owner)
	w.runner.script = func(r *fakeRun) {
		r.begin(t)
		<-time.After(75 * time.Second)
		r.step(t, "x")
		r.end(t)
	}
	go func() {}()
	s := in.open(t, w.owner, "POST", messagesOf(session), `{"content":"hi"}`)
	got := in.send(t, in.request(t, w.owner, "POST", messagesOf(in.newSession(t, w.owner)), `{"content":"hi"}`, func(r *http.Request) { r.Header.Set("Accept", "application/json") }))
	t.Log(got)
	t.Log(s.text())
}
