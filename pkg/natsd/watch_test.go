package natsd_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"signalbox.dev/pkg/natsd"
	"signalbox.dev/pkg/subject"
)

// An unhealthy server is restarted as soon as that works, and its clients reconnect, with
// their passwords, to the stored messages.
func TestRestart(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	srv, err := start(t, natsd.Config{Dir: dir, Users: []subject.User{{Name: subject.Admin, Publish: []string{">"}, Subscribe: []string{">"}}}})
	if err != nil {
		t.Fatal(err)
	}
	nc := connect(t, "", append(srv.Options(subject.Admin), nats.MaxReconnects(-1), nats.ReconnectWait(10*time.Millisecond))...)
	lost, back := make(chan struct{}, 9), make(chan struct{}, 9)
	nc.SetDisconnectErrHandler(func(*nats.Conn, error) { lost <- struct{}{} })
	nc.SetReconnectHandler(func(*nats.Conn) { back <- struct{}{} })
	js := jet(t, nc)
	stream, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "s", Subjects: []string{"s.>"}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.Publish(t.Context(), "s.1", []byte("kept")); err != nil {
		t.Fatal(err)
	}
	// A stream on disk that the server does not have makes it unhealthy.
	found, err := filepath.Glob(filepath.Join(dir, "jetstream", "*", "streams", "s"))
	if err != nil || len(found) != 1 {
		t.Fatalf("the stream's folder: %q, %v", found, err)
	}
	ghost := filepath.Join(filepath.Dir(found[0]), "ghost")
	if err := os.Mkdir(ghost, 0o700); err != nil {
		t.Fatal(err)
	}
	wait(t, lost, "the server is ended")
	if err := os.Remove(ghost); err != nil {
		t.Fatal(err)
	}
	wait(t, back, "clients are back")
	if m, err := stream.GetLastMsgForSubject(t.Context(), "s.1"); err != nil || string(m.Data) != "kept" {
		t.Errorf("after the restart: %v, %v, want the stored message", m, err)
	}
	if _, err := js.Publish(t.Context(), "s.2", nil); err != nil {
		t.Errorf("Publish after the restart = %v", err)
	}
}

func wait(t *testing.T, happened <-chan struct{}, what string) {
	t.Helper()
	select {
	case <-happened:
	case <-time.After(30 * time.Second):
		t.Fatalf("timed out waiting until %s", what)
	}
}
