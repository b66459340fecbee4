// Chat asks an agent and prints its answer as it is written. If the connection breaks, it goes on
// after the last event that it has: nothing is missed, and nothing comes twice.
//
//	go run examples/chat.go "what time is it?"
package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"strings"
	"time"
)

func main() {
	if len(os.Args) != 2 {
		log.Fatal(`usage: chat "what to ask"`)
	}
	var made struct {
		Session struct{ ID string }
	}
	if err := post("/api/sessions", nil, &made, nil); err != nil {
		log.Fatal(err)
	}
	var sent struct {
		Run struct{ ID string }
	}
	// The Idempotency-Key makes it safe to send the message again.
	headers := http.Header{"Prefer": {"respond-async"}, "Idempotency-Key": {made.Session.ID + "-1"}}
	if err := post("/api/sessions/"+made.Session.ID+"/messages", map[string]string{"content": os.Args[1]}, &sent, headers); err != nil {
		log.Fatal(err)
	}
	last := ""
	for tries := 0; tries < 10; tries++ {
		before := last
		ended, err := follow(sent.Run.ID, &last)
		if ended {
			fmt.Println()
			return
		}
		if last != before {
			tries = 0
		}
		log.Print("the stream broke, connecting again: ", err)
		time.Sleep(time.Second)
	}
	log.Fatal("gave up")
}

// follow prints a run's text after the event *last, which it updates, and reports whether the run
// has ended.
func follow(run string, last *string) (ended bool, err error) {
	res, err := send("GET", "/api/runs/"+run+"/events", nil, http.Header{"Last-Event-Id": {*last}})
	if err != nil {
		return false, err
	}
	defer res.Body.Close()
	lines := bufio.NewScanner(res.Body)
	lines.Buffer(nil, 4<<20) // an event is one line
	for lines.Scan() {
		name, value, _ := strings.Cut(lines.Text(), ": ")
		switch name {
		case "id": // comes after the data
			*last = value
		case "data":
			var event struct{ Type, Delta, Error string }
			if err := json.Unmarshal([]byte(value), &event); err != nil {
				return false, err
			}
			switch event.Type {
			case "text-delta":
				fmt.Print(event.Delta)
			case "error":
				log.Fatal(event.Error)
			case "done":
				return true, nil
			}
		}
	}
	return false, lines.Err()
}

func post(path string, body, into any, headers http.Header) error {
	var text []byte
	if body != nil {
		text, _ = json.Marshal(body)
	}
	res, err := send("POST", path, text, headers)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	return json.NewDecoder(res.Body).Decode(into)
}

// send makes a request. An answer that is an error is one.
func send(method, path string, body []byte, headers http.Header) (*http.Response, error) {
	req, err := http.NewRequest(method, os.Getenv("SIGNALBOX_URL")+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	if headers != nil {
		req.Header = headers
	}
	req.Header.Set("Authorization", "Bearer "+os.Getenv("SIGNALBOX_TOKEN"))
	req.Header.Set("X-Workspace-Id", os.Getenv("SIGNALBOX_WORKSPACE"))
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	if res.StatusCode >= 300 {
		defer res.Body.Close()
		text, _ := io.ReadAll(io.LimitReader(res.Body, 1<<10))
		return nil, fmt.Errorf("%s %s: %s: %s", method, path, res.Status, text)
	}
	return res, nil
}
