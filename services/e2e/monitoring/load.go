package monitoring

import (
	"context"
	"errors"
	"io"
	"net/http"
	"time"

	"golang.org/x/sync/errgroup"

	"signalbox.dev/services/e2e/editing"
	"signalbox.dev/services/e2e/world"
)

// script lets a model write a document.
const script = `
description: Writes a note.
delay: 5ms
rules:
  - name: written
    when: {result: {tool: doc_create}}
    then: [{say: 'The note is written, and somebody who reads it will find that no word was left out.'}]
  - name: write
    then:
      - say: 'I write a note.'
      - call: {tool: doc_create, args: {name: 'a note', content: 'This is a note.'}}
`

// Use lets a member use Signalbox until ctx is done: edit a document, and send messages that are
// answered with a tool and a stream. Messages that fail are not sent again.
func Use(ctx context.Context, w *world.World, who world.Member) error {
	if err := w.PutScript(ctx, "monitoring", script); err != nil {
		return err
	}
	var made struct{ Document struct{ ID string } }
	err := w.Client(0, who).Call(ctx, world.Request{Method: http.MethodPost, Path: "/api/documents", Body: map[string]string{"name": "Edited"}}, &made)
	if err != nil {
		return err
	}
	gateway := 0 // the next connection goes to another one
	editor := editing.NewEditor("editor", 1, func() string {
		gateway++
		return editing.Place(w, gateway%len(w.Gateways), who, made.Document.ID)
	})
	use, ctx := errgroup.WithContext(ctx)
	use.Go(func() error { return editor.Run(ctx) })
	use.Go(func() error {
		for pause(ctx, 200*time.Millisecond) {
			if err := editor.Edit(); err != nil {
				return err
			}
		}
		return nil
	})
	use.Go(func() error {
		for n := 0; pause(ctx, 200*time.Millisecond); n++ {
			turn, cancel := context.WithTimeout(ctx, 30*time.Second)
			_ = SendAndRead(turn, w.Client(n%len(w.Gateways), who), "simulator", "sim/monitoring", "write a note") // faults are expected
			cancel()
		}
		return nil
	})
	return use.Wait()
}

// pause returns false if ctx is done first.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// SendAndRead sends a message in a new session, and reads the stream to its end. It returns nil if
// the run fails.
func SendAndRead(ctx context.Context, c world.Client, provider, model, content string) error {
	var made struct{ Session struct{ ID string } }
	err := c.Call(ctx, world.Request{Method: http.MethodPost, Path: "/api/sessions", Body: map[string]string{"provider": provider, "model": model}}, &made)
	if err != nil {
		return err
	}
	s, err := c.Send(ctx, made.Session.ID, world.Sending{Content: content})
	if err != nil {
		return err
	}
	defer func() { _ = s.Close() }() // only read from
	for {
		if _, err := s.Next(); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
	}
}
