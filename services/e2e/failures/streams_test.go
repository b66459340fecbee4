package failures_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/subject"
	credentialv1 "signalbox.dev/proto/signalbox/credential/v1"
	"signalbox.dev/services/e2e/world"
)

// streamsVariable is the number of streams of TestStreams; `make e2e-streams` sets it.
const streamsVariable = "SIGNALBOX_E2E_STREAMS"

const (
	fewStreams = 1000
	callers    = 256 // concurrent streams
)

// TestStreams checks, with eight busy programs per processor, that a stream that ends cleanly has
// every byte that the provider sent, and that one that the provider broke off never ends cleanly,
// in both dialects, with and without TLS.
//
//nolint:paralleltest // nothing else could be timed beside it
func TestStreams(t *testing.T) {
	n, _ := strconv.Atoi(os.Getenv(streamsVariable)) // 0 if unset or invalid
	n = cmp.Or(n, fewStreams)
	ctx := t.Context()
	plain, secure := httptest.NewServer(http.HandlerFunc(provide)), httptest.NewTLSServer(http.HandlerFunc(provide))
	t.Cleanup(plain.Close)
	t.Cleanup(secure.Close)
	r := newRig(ctx, t, map[string][]string{subject.CredentialBroker: {"SSL_CERT_FILE=" + certificate(t, secure)}})
	var members []world.Member // each in a workspace with one of the providers
	for _, up := range []string{plain.URL, secure.URL} {
		who, err := r.NewMember(ctx, "", "owner")
		if err != nil {
			t.Fatal(err)
		}
		if err := r.pool(ctx, who, up); err != nil {
			t.Fatal(err)
		}
		members = append(members, who)
	}
	oversubscribe(t)

	out := &outcome{t: t}
	start := time.Now()
	var next atomic.Int64
	var wg sync.WaitGroup
	// A server closes an unused connection after 5 s. A client that has dialled more
	// connections than it needed should close them earlier.
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: callers, IdleConnTimeout: 2 * time.Second}}
	t.Cleanup(client.CloseIdleConnections)
	for i := range callers {
		c, err := r.newCaller(members[i%len(members)], client)
		if err != nil {
			t.Fatal(err)
		}
		wg.Go(func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= n || out.failed.Load() > 20 {
					return
				}
				if i > 0 && i%10_000 == 0 {
					t.Logf("%d streams in %s, %d are wrong", i, time.Since(start).Round(time.Second), out.failed.Load())
				}
				s := newStream(i)
				out.check(s, c.ask(ctx, s))
			}
		})
	}
	wg.Wait()
	t.Logf("%d streams in %s, %d of them broken off by the provider: %d MiB; %d wrong", out.whole.Load()+out.broken.Load(), time.Since(start).Round(time.Second),
		out.broken.Load(), out.bytes.Load()>>20, out.failed.Load())
	if got := out.whole.Load() + out.broken.Load(); got < int64(n) {
		t.Errorf("%d of %d streams are correct", got, n)
	}
}

// certificate writes a server's certificate into a file.
func certificate(t *testing.T, s *httptest.Server) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "roots.pem")
	if err := os.WriteFile(name, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// pool stores several accounts for each dialect, which are chosen by score. The profile of one
// dialect translates the names of tools.
func (r *rig) pool(ctx context.Context, who world.Member, base string) error {
	operator, err := as(ctx, who)
	if err != nil {
		return err
	}
	for provider, profile := range shipped {
		for i := range 4 {
			if err := r.add(ctx, who, provider, profile, fmt.Sprint(provider, "-account-", i), base); err != nil {
				return err
			}
		}
		_, err := r.accounts.SetPool(operator, &credentialv1.SetPoolRequest{Provider: provider, Settings: &credentialv1.PoolSettings{Strategy: new("hybrid")}})
		if err != nil {
			return err
		}
	}
	return nil
}

// The endings of a stream.
type ending int

const (
	complete ending = iota
	aborted         // the connection breaks
	cut             // a clean end without the last event
)

// stream is one of the streams, determined by its number.
type stream struct {
	n      int
	chat   bool   // a chat completion, not a message
	sent   []byte // by the provider, unless it breaks off
	want   []byte // the same, with the caller's names of tools
	body   int    // bytes of text in the request
	ending ending
	stop   int    // the number of bytes before a bad end
	early  bool   // the provider answers before it has read the request
	pieces [2]int // the minimum and maximum size of a write
	seed   uint64
}

func newStream(n int) *stream {
	rnd := rand.New(rand.NewPCG(uint64(n), 1))
	s := &stream{n: n, seed: rnd.Uint64(), early: rnd.IntN(2) == 0, body: rnd.IntN(8 << 10)}
	if rnd.IntN(50) == 0 {
		s.body = 300 << 10
	}
	eol := "\n"
	if rnd.IntN(4) == 0 {
		eol = "\r\n"
	}
	s.chat = rnd.IntN(2) == 0
	fill := s.message
	if s.chat {
		fill = s.completion
	}
	s.close(rnd, fill(rnd, eol))
	return s
}

// message makes it an Anthropic message. It returns the offset after which a truncated stream
// still counts as complete.
func (s *stream) message(rnd *rand.Rand, eol string) int {
	tool := rnd.IntN(20)
	event := func(name, data string) {
		text := "event: " + name + eol + "data: " + data + eol + eol
		s.sent = append(s.sent, strings.ReplaceAll(text, "§", "mcp_")...)
		s.want = append(s.want, strings.ReplaceAll(text, "§", "")...)
	}
	event("message_start", `{"type":"message_start","message":{"id":"msg_1","type":"message","role":"assistant","content":[],"usage":{"input_tokens":9,"output_tokens":1}}}`)
	for i := range 1 + rnd.IntN(40) {
		if i == tool {
			event("content_block_start", `{"type":"content_block_start","index":1,"content_block":{"type":"tool_use","id":"toolu_1","name":"§doc_create","input":{}}}`)
		}
		event("content_block_delta", fmt.Sprintf(`{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"%d/%d %s"}}`, s.n, i, strings.Repeat("wörter ", rnd.IntN(30))))
	}
	event("message_delta", `{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":20}}`)
	event("message_stop", `{"type":"message_stop"}`)
	return len(s.sent) - len(`{"type":"message_stop"}`)
}

// completion makes it a chat completion, possibly without [DONE].
func (s *stream) completion(rnd *rand.Rand, eol string) int {
	event := func(data string) { s.sent = append(s.sent, "data: "+data+eol+eol...) }
	event(`{"id":"c","choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}`)
	for i := range 1 + rnd.IntN(40) {
		event(fmt.Sprintf(`{"id":"c","choices":[{"index":0,"delta":{"content":"%d/%d %s"},"finish_reason":null}]}`, s.n, i, strings.Repeat("wörter ", rnd.IntN(30))))
	}
	last := len(s.sent) + len(`data: {"id":"c",`)
	event(`{"id":"c","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}`)
	if rnd.IntN(2) == 0 {
		event(`{"id":"c","choices":[],"usage":{"prompt_tokens":9,"completion_tokens":20}}`)
	}
	if rnd.IntN(4) > 0 {
		event("[DONE]")
	}
	s.want = s.sent
	return last
}

// close chooses how it is written and how it ends; a bad end comes before last.
func (s *stream) close(rnd *rand.Rand, last int) {
	switch rnd.IntN(8) {
	case 0:
		s.pieces = [2]int{1, 40}
	case 1, 2, 3, 4:
		s.pieces = [2]int{100, 1000}
	default:
		s.pieces = [2]int{len(s.sent), len(s.sent)}
	}
	switch rnd.IntN(8) {
	case 0:
		s.ending = aborted
	case 1:
		s.ending = cut
	}
	if s.ending != complete {
		s.stop = rnd.IntN(last)
	}
}

// provide implements the provider.
func provide(w http.ResponseWriter, r *http.Request) {
	n, err := strconv.Atoi(r.Header.Get("X-Stream"))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	s := newStream(n)
	rc := http.NewResponseController(w)
	if s.early {
		_ = rc.EnableFullDuplex() // HTTP/1.1 has it
		defer func() { _, _ = io.Copy(io.Discard, r.Body) }()
	} else if _, err := io.Copy(io.Discard, r.Body); err != nil {
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	left := s.sent
	if s.ending != complete {
		left = left[:s.stop]
	}
	rnd := rand.New(rand.NewPCG(s.seed, 2))
	for len(left) > 0 {
		k := min(len(left), s.pieces[0]+rnd.IntN(s.pieces[1]-s.pieces[0]+1))
		if _, err := w.Write(left[:k]); err != nil {
			return
		}
		if left = left[k:]; rnd.IntN(4) > 0 && rc.Flush() != nil {
			return
		}
	}
	if s.ending == aborted {
		_ = rc.Flush() // sends what was written
		panic(http.ErrAbortHandler)
	}
}

// caller sends requests like agent-runner, in a session of its own.
type caller struct {
	url    string
	actor  identity.Actor
	signer *identity.Signer
	http   *http.Client
}

func (r *rig) newCaller(who world.Member, client *http.Client) (*caller, error) {
	ws, err := id.Parse[id.Workspace](who.Workspace)
	if err != nil {
		return nil, err
	}
	member, err := id.Parse[id.Member](who.ID)
	return &caller{
		url:    "http://" + r.Replica(subject.CredentialBroker, 1).Addr + "/egress/",
		actor:  identity.Actor{Workspace: ws, Member: member, Role: identity.Editor, Run: id.New[id.Run](), Session: id.New[id.Session]()},
		signer: r.signers[subject.AgentRunner], http: client,
	}, err
}

// answer is a response; err is the end of the body, nil for a clean one.
type answer struct {
	status int
	body   []byte
	err    error
}

var errNoAnswer = errors.New("no answer")

func (c *caller) ask(ctx context.Context, s *stream) answer {
	token, err := c.signer.Sign(c.actor, subject.CredentialBroker)
	if err != nil {
		return answer{err: errors.Join(errNoAnswer, err)}
	}
	path, tools := "anthropic/v1/messages", `"tools":[{"name":"doc_create","input_schema":{"type":"object"}}],`
	if s.chat {
		path, tools = "openai/v1/chat/completions", ""
	}
	text := `{"model":"m","max_tokens":100,"stream":true,` + tools + `"messages":[{"role":"user","content":"` + strings.Repeat("a", s.body) + `"}]}`
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url+path, strings.NewReader(text))
	if err != nil {
		return answer{err: errors.Join(errNoAnswer, err)}
	}
	req.Header = http.Header{identity.Header: {token}, "Content-Type": {"application/json"}, "X-Stream": {strconv.Itoa(s.n)}, "Anthropic-Version": {"2023-06-01"}}
	res, err := c.http.Do(req)
	if err != nil {
		return answer{err: errors.Join(errNoAnswer, err)}
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	return answer{res.StatusCode, body, err}
}

// outcome counts.
type outcome struct {
	t                            *testing.T
	whole, broken, bytes, failed atomic.Int64
}

// check reports what is wrong with an answer.
func (o *outcome) check(s *stream, a answer) {
	o.bytes.Add(int64(len(a.body)))
	wrong := func(what string) {
		o.failed.Add(1)
		o.t.Errorf("stream %d: %s: status %d, %d bytes of %d, end %v: …%.300s", s.n, what, a.status, len(a.body), len(s.want), a.err, a.body[max(0, len(a.body)-300):])
	}
	switch {
	case errors.Is(a.err, errNoAnswer):
		wrong("it was not answered")
	case s.ending == complete && a.err == nil && a.status == http.StatusOK && bytes.Equal(a.body, s.want):
		o.whole.Add(1)
	case s.ending == complete && a.err == nil:
		wrong("it is not what the provider sent")
	case s.ending == complete:
		wrong("it broke although the provider sent all of it")
	case a.status == http.StatusBadGateway && a.err == nil:
		o.broken.Add(1) // nothing of it reached the caller
	case a.status != http.StatusOK || a.err == nil:
		wrong("a part of an answer has a good end")
	default:
		fault := "event: error\n"
		if s.chat {
			fault = `data: {"error":`
		}
		before, _, found := bytes.Cut(a.body, []byte(fault))
		if !found || !bytes.HasPrefix(s.want, before) {
			wrong("before its end there is not what the provider sent, and an error")
			return
		}
		o.broken.Add(1)
	}
}
