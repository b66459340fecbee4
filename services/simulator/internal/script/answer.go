package script

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"strings"
	"time"

	"signalbox.dev/services/simulator/internal/chat"
	"signalbox.dev/services/simulator/internal/tally"
)

// Answer returns the answer of the script's first rule whose conditions hold. counts has the
// counts of faults with "times". Errors are errors of the script: a template that does not
// fit its data, or no rule that holds.
func (s *Script) Answer(req *chat.Request, counts *tally.Tally) (*chat.Answer, error) {
	sc := newScene(req)
	for i := range s.Rules {
		r := &s.Rules[i]
		if !r.When.holds(sc) {
			continue
		}
		b := builder{script: s, rule: i, scene: sc, counts: counts, answer: &chat.Answer{Script: s.Name, Rule: r.label(i)}}
		if err := b.play(b.actions()); err != nil {
			return nil, fmt.Errorf("script %s, rule %s: %w", s.Name, r.label(i), err)
		}
		return b.answer, nil
	}
	return nil, fmt.Errorf("script %s: no rule holds for this request: add one without conditions at the end", s.Name)
}

func (r *Rule) label(i int) string {
	if r.Name != "" {
		return r.Name
	}
	return fmt.Sprintf("rules[%d]", i)
}

// builder builds one answer.
type builder struct {
	script  *Script
	rule    int
	scene   *scene
	counts  *tally.Tally
	answer  *chat.Answer
	numbers int           // calls and searches so far
	sources []chat.Source // of the last search
	spent   [][32]byte    // keys of faults that have happened often enough
	ended   bool
}

// actions returns the rule's actions for the tools that the request offers.
func (b *builder) actions() []Action {
	r := &b.script.Rules[b.rule]
	b.answer.Shape = b.script.Wire.shape()
	if r.Wire != nil {
		b.answer.Shape = r.Wire.shape()
	}
	b.answer.Reasoning = b.reasoning()
	var missing []string
	for _, t := range r.Needs {
		if !b.scene.req.Offers(t) {
			missing = append(missing, "`"+t+"`")
		}
	}
	if len(missing) == 0 {
		return r.Then
	}
	if len(r.Otherwise) > 0 {
		return r.Otherwise
	}
	return []Action{{Say: &Say{Text: Template{static: "I would use " + strings.Join(missing, " and ") +
		" for this, but it is not enabled in this session. Enable it and ask me again."}}}}
}

// reasoning returns the delta field for thinking in the OpenAI dialect, or "" to leave thinking
// out as OpenAI does. OpenRouter has its own field.
func (b *builder) reasoning() string {
	switch {
	case b.script.Reasoning == "none":
		return ""
	case b.scene.req.Dialect == chat.OpenRouter:
		return "reasoning"
	default:
		return b.script.Reasoning
	}
}

func (b *builder) play(actions []Action) error {
	for i, a := range actions {
		if err := b.action(a, i); err != nil {
			return fmt.Errorf("then[%d]: %w", i, err)
		}
		if b.ended {
			return nil
		}
	}
	// No counted fault is left, so that the next request begins with the first one again.
	for _, key := range b.spent {
		b.counts.Forget(key)
	}
	return nil
}

func (b *builder) action(a Action, i int) error {
	switch {
	case a.Wait != nil:
		b.add(chat.Step{Wait: time.Duration(*a.Wait)})
	case a.Event != nil:
		b.add(chat.Step{Event: &chat.Event{Name: a.Event.Name, Data: a.Event.Data}})
	case a.Fail != nil:
		b.fail(a.Fail, i)
	case a.Stop != nil:
		b.answer.Stop, b.answer.StopSequence = a.Stop.Reason, a.Stop.Sequence
	case a.Usage != nil:
		b.answer.Override = a.Usage
	case a.Search != nil:
		return b.search(a.Search)
	case a.Interleave != nil:
		var all []*chat.Block
		for _, in := range a.Interleave {
			block, err := b.block(in)
			if err != nil {
				return err
			}
			all = append(all, block)
		}
		b.add(chat.Step{Together: all})
	default:
		block, err := b.block(a)
		if err != nil {
			return err
		}
		b.add(chat.Step{Block: block})
	}
	return nil
}

func (b *builder) add(s chat.Step) { b.answer.Steps = append(b.answer.Steps, s) }

func (b *builder) block(a Action) (*chat.Block, error) {
	switch {
	case a.Say != nil:
		return b.say(a.Say)
	case a.Think != nil:
		text, err := a.Think.Text.render(b.scene.values)
		return &chat.Block{
			Kind: chat.Thinking, Pieces: b.chunk(a.Think.Chunk).split(text), Delay: b.delay(a.Think.Delay), Signature: a.Think.Signature,
		}, err
	case a.Redacted != nil:
		data, err := a.Redacted.render(b.scene.values)
		return &chat.Block{Kind: chat.Redacted, Data: data}, err
	case a.Call != nil:
		return b.call(a.Call)
	case a.Block != nil:
		raw := &chat.Raw{Start: json.RawMessage(a.Block.Start), Final: json.RawMessage(a.Block.Final)}
		for _, d := range a.Block.Deltas {
			raw.Deltas = append(raw.Deltas, json.RawMessage(d))
		}
		return &chat.Block{Kind: chat.RawBlock, Raw: raw}, nil
	default:
		return nil, errors.New("an action without content")
	}
}

func (b *builder) say(a *Say) (*chat.Block, error) {
	text, err := a.Text.render(b.scene.values)
	if err != nil {
		return nil, err
	}
	block := &chat.Block{Kind: chat.Text, Pieces: b.chunk(a.Chunk).split(text), Delay: b.delay(a.Delay)}
	for _, n := range a.Cite {
		if n < 0 || n >= len(b.sources) {
			return nil, fmt.Errorf("say: cite %d, but the search before it has %d results", n, len(b.sources))
		}
		block.Cites = append(block.Cites, b.sources[n])
	}
	return block, nil
}

func (b *builder) call(a *Call) (*chat.Block, error) {
	name, err := a.Tool.render(b.scene.values)
	if err != nil {
		return nil, err
	}
	args := ""
	if a.Args != nil {
		if args, err = a.Args.render(b.scene.values); err != nil {
			return nil, fmt.Errorf("call %s: %w", name, err)
		}
	}
	if runes := []rune(args); a.Break > 0 && a.Break < len(runes) {
		args = string(runes[:a.Break])
	}
	chunk := a.Chunk
	if chunk == nil {
		chunk = argSizes()
	}
	b.numbers++
	return &chat.Block{
		Kind: chat.Call, Name: name, ID: a.ID, Number: b.numbers,
		Pieces: chunk.split(args), Delay: b.delay(a.Delay),
	}, nil
}

func (b *builder) search(a *SearchAction) error {
	query, err := a.Query.render(b.scene.values)
	if err != nil {
		return err
	}
	args, err := appendJSON(nil, map[string]string{"query": query})
	if err != nil {
		return err
	}
	b.numbers++
	b.add(chat.Step{Block: &chat.Block{
		Kind: chat.Search, Name: "web_search", Number: b.numbers, Pieces: argSizes().split(string(args)), Delay: b.delay(nil),
	}})
	b.sources = nil
	for _, r := range a.Results {
		src := chat.Source{PageAge: r.Age}
		for _, f := range []struct {
			t    *Template
			into *string
		}{{&r.URL, &src.URL}, {&r.Title, &src.Title}, {&r.Text, &src.Text}} {
			if *f.into, err = f.t.render(b.scene.values); err != nil {
				return err
			}
		}
		b.sources = append(b.sources, src)
	}
	if !a.Open {
		b.add(chat.Step{Block: &chat.Block{Kind: chat.SearchResult, Number: b.numbers, Sources: b.sources, SearchError: a.Error}})
	}
	return nil
}

func (b *builder) chunk(own *Chunk) *Chunk {
	if own != nil {
		return own
	}
	return b.script.Chunk
}

func (b *builder) delay(own *Duration) time.Duration {
	if own != nil {
		return time.Duration(*own)
	}
	return time.Duration(b.script.Delay)
}

func (b *builder) fail(f *Fail, i int) {
	if f.Times > 0 {
		key := b.key(f, i)
		if _, counted := b.counts.Add(key, f.Times); !counted {
			if f.Scope != "script" {
				b.spent = append(b.spent, key)
			}
			return
		}
	}
	fault := &chat.Fault{
		Kind: f.Kind, Status: f.Status, Type: f.Type, Code: f.Code, Message: f.Message, RetryAfter: f.RetryAfter,
		Headers: f.Headers, InStream: f.InStream, Late: f.Late, Torn: f.Torn, For: time.Duration(f.For),
	}
	b.add(chat.Step{Fault: fault})
	b.ended = fault.Ends()
}

// key identifies a counted fault by the script's text and, unless its scope is the script, by
// the conversation. The system prompt is left out, because it may contain the time and a retry
// must have the same key.
func (b *builder) key(f *Fail, i int) [32]byte {
	h := sha256.New()
	put(h, b.script.Name)
	h.Write(b.script.version[:])
	put(h, fmt.Sprintf("%d.%d", b.rule, i))
	if f.Scope != "script" {
		put(h, b.scene.req.Model)
		for _, m := range b.scene.req.Messages {
			put(h, string(m.Role))
			for _, p := range m.Parts {
				put(h, p.Text)
				put(h, p.ID)
				put(h, p.URL)
			}
		}
	}
	return [32]byte(h.Sum(nil))
}

func put(h hash.Hash, s string) {
	var n [8]byte
	binary.BigEndian.PutUint64(n[:], uint64(len(s)))
	h.Write(n[:])
	h.Write([]byte(s))
}
