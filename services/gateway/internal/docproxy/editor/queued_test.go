package editor_test

import (
	"bytes"
	"io"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gorilla/websocket"

	"signalbox.dev/services/gateway/internal/docproxy/editor"
)

const kib = 1 << 10

// queueLarge queues a frame of size bytes in pieces that sharers connections share.
func (s *served) queueLarge(size, sharers int) {
	large := editor.Message(make([]byte, size))
	for at := 0; at < len(large); at += 64 * kib {
		s.Queue(large[at:min(len(large), at+64*kib)], at+64*kib < len(large), sharers)
		s.Flush()
	}
	synctest.Wait()
}

// crawl reads 64 KiB at intervals until it is stopped.
func crawl(ws *websocket.Conn, every time.Duration) (stop func()) {
	var reader sync.WaitGroup
	reader.Go(func() {
		for {
			<-time.After(every)
			if _, err := io.CopyN(io.Discard, ws.NetConn(), 64*kib); err != nil {
				return
			}
		}
	})
	return func() { ws.Close(); reader.Wait() }
}

// A client that reads a large frame slowly gets time, but less while many bytes are queued.
func TestLargeFrameTakesTooLong(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		held     int
		every    time.Duration
		from, to time.Duration // when the connection ends; 0 for never
	}{
		"slow, alone":            {1 << 30, 5 * time.Second, 34 * time.Second, 37 * time.Second},
		"slow, in a crowd":       {1200 * kib, 5 * time.Second, 11 * time.Second, 14 * time.Second},
		"fast enough, alone":     {1 << 30, 2 * time.Second, 0, 0},
		"fast enough in a crowd": {1200 * kib, 500 * time.Millisecond, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			crowd(t, 100*kib, tt.held, func(w *world) {
				ws, s := w.dial()
				began := time.Now()
				s.queueLarge(800*kib, 1)
				defer crawl(ws, tt.every)()
				select {
				case why := <-s.ended:
					if d := time.Since(began); tt.to == 0 || why.Code != 1013 || d < tt.from || d > tt.to {
						t.Errorf("it ended with %d after %v, want 1013 after %v", why.Code, d, tt.from)
					}
				case <-time.After(50 * time.Second):
					if tt.to != 0 {
						t.Error("it goes on")
					}
				}
			})
		})
	}
}

// The bytes queued for all slow clients are bounded. A client that was refused gets them later.
func TestQueuedBytesOfAllAreBounded(t *testing.T) {
	t.Parallel()
	crowd(t, 100*kib, 1200*kib, func(w *world) {
		_, a := w.dial()
		a.queueLarge(800*kib, 1)
		b, grows := w.dial()
		go func() { _, _ = io.Copy(io.Discard, io.LimitReader(b.NetConn(), 100*kib)) }()
		grows.queueLarge(800*kib, 1)
		if why := <-grows.ended; why.Code != editor.CodeLost {
			t.Errorf("the client with an incomplete frame ended with %d, want 1006", why.Code)
		}
		_, fills := w.dial()
		fills.queueLarge(530*kib, 1) // up to the bound
		c, begins := w.dial()
		begins.queueLarge(100*kib, 1)
		if code, _ := end(c); code != 1013 {
			t.Errorf("the client whose frame had not started ended with %d, want 1013", code)
		}
		c.Close()
		<-begins.ended
		d, small := w.dial()
		small.Send(editor.Message([]byte("small")))
		if _, got, err := d.ReadMessage(); err != nil || string(got) != "small" {
			t.Errorf("a short message = %q, %v", got, err)
		}
		<-a.ended // they read nothing
		<-fills.ended
		go small.queueLarge(1100*kib, 1)
		if _, got, err := d.ReadMessage(); err != nil || len(got) != 1100*kib {
			t.Errorf("%d bytes, %v, when all slow readers have gone", len(got), err)
		}
	})
}

// A piece that many connections share counts once.
func TestSharedFrame(t *testing.T) {
	t.Parallel()
	crowd(t, 100*kib, 1200*kib, func(w *world) {
		var all []*websocket.Conn
		for range 20 {
			ws, s := w.dial()
			s.queueLarge(800*kib, 20)
			all = append(all, ws)
		}
		for i, ws := range all {
			if _, got, err := ws.ReadMessage(); err != nil || len(got) != 800*kib {
				t.Errorf("connection %d got %d bytes, %v", i, len(got), err)
			}
		}
	})
}

// No other frame comes between the pieces of a frame, even if others send at the same time.
func TestPieces(t *testing.T) {
	t.Parallel()
	bubble(t, 1<<30, func(w *world) {
		ws, s := w.dial()
		const frames = 200_000
		frame := editor.Message(bytes.Repeat([]byte("x"), 100))
		var senders sync.WaitGroup
		stop := make(chan struct{})
		senders.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					s.Send(editor.Message([]byte("between")))
				}
			}
		})
		senders.Go(func() {
			for range frames {
				s.Queue(frame[:50], true, 1)
				s.Queue(frame[50:], false, 1)
			}
			close(stop)
			s.Queue(editor.Message([]byte("last")), false, 1)
			s.Flush()
		})
		for n := 0; ; {
			_, got, err := ws.ReadMessage()
			switch {
			case err != nil:
				t.Fatalf("after %d frames: %v", n, err)
			case string(got) == "between":
			case string(got) == "last":
				if n != frames {
					t.Errorf("%d frames came, want %d", n, frames)
				}
				senders.Wait()
				return
			case len(got) != 100 || bytes.Count(got, []byte("x")) != 100:
				t.Fatalf("after %d frames: %q", n, got)
			default:
				n++
			}
		}
	})
}
