package sim

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"signalbox.dev/pkg/bus"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/subject"
	"signalbox.dev/services/agent-runner/internal/llm"
	"signalbox.dev/services/agent-runner/internal/llm/anthropic"
	"signalbox.dev/services/agent-runner/internal/loop"
	"signalbox.dev/services/agent-runner/internal/outbox"
	"signalbox.dev/services/agent-runner/internal/sweep"
	"signalbox.dev/services/agent-runner/internal/toolbox"
)

// process is a process of a runner or of a tool executor, from its start to its exit or death.
// The world's lock guards the fields marked so.
type process struct {
	w    *world
	slot int
	name string
	ctx  context.Context // ends when it is killed
	kill context.CancelFunc
	work sync.WaitGroup

	drain    chan struct{} // closed to make it leave
	draining sync.Once
	left     chan struct{} // closed when it has left

	// Under the world's lock:
	dead       bool
	died       time.Time
	resumed    chan struct{} // of a stopped process: closed when it continues
	noPostgres bool
	noNATS     bool
	ready      bool // people may ask it
	hears      []interest
	holding    map[id.Run]int64 // epochs of the runs in hand
	renewed    time.Time
	present    time.Time // since when its presence is held; zero: it is not
	ill        time.Time // when it last was less than well

	own   int           // runs in work that begin here
	slots chan struct{} // holds one for each slot in use

	out    *outbox.Outbox
	loop   *loop.Loop
	people store
	tools  *toolbox.Toolbox
}

// enter returns when p may continue: at once, or after p was stopped, or with an error if p is
// dead or ctx has ended. who identifies the goroutine, because goroutines of a stopped process
// continue at different times.
func (p *process) enter(ctx context.Context, who string) error {
	for {
		var dead bool
		var resumed chan struct{}
		var pause time.Duration
		p.w.locked(func() {
			if dead, resumed = p.dead, p.resumed; resumed != nil {
				pause = p.w.between(who, 0, time.Millisecond)
			}
		})
		switch {
		case dead:
			return errDead
		case resumed == nil:
			return ctx.Err()
		}
		select {
		case <-resumed:
			p.rest(pause)
		case <-p.ctx.Done():
		}
	}
}

// rest waits for about d, until a time that no one else has, or until p is killed.
func (p *process) rest(d time.Duration) {
	p.w.locked(func() { d = p.w.moment(d) })
	_ = p.sleep(d)
}

// sleep waits for d. It returns an error if p is killed.
func (p *process) sleep(d time.Duration) error { return sleep(p.ctx, d) }

// leaves reports whether the process is draining.
func (p *process) leaves() bool {
	select {
	case <-p.drain:
		return true
	case <-p.ctx.Done():
		return true
	default:
		return false
	}
}

// leave is SIGTERM.
func (p *process) leave() { p.draining.Do(func() { close(p.drain) }) }

// newProcess returns a process that is not started.
func (w *world) newProcess(slot int, name string) *process {
	ctx, kill := context.WithCancel(context.Background())
	return &process{
		w: w, slot: slot, name: name, ctx: ctx, kill: kill, drain: make(chan struct{}), slots: make(chan struct{}, w.shape.slots), left: make(chan struct{}),
		holding: map[id.Run]int64{}, ill: time.Now(),
	}
}

// Limits of a runner, like those of the product except for limits that a simulated run would
// never reach.
const (
	lease     = 6 * time.Second
	beat      = time.Second
	wallTime  = 90 * time.Second
	drainTime = 8 * time.Second
)

// approvalTime is how long people have to answer.
const approvalTime = 30 * time.Second

func loopConfig(w *world, name string) loop.Config {
	untitled, err := loop.ParseTitles("off")
	if err != nil {
		panic(err) // it is a constant
	}
	return loop.Config{
		Tries: 3, Backoff: 500 * time.Millisecond, MaxRetryAfter: 5 * time.Second, StepTime: 20 * time.Second,
		ToolTime: 8 * time.Second, Queueing: 10 * time.Second, ApprovalTime: approvalTime, Patience: 8 * time.Second, MaxFruitless: w.shape.fruitless, Partitions: partitions, CompactAt: 0.8, CompactKeep: 0.25, Titles: untitled,
		Jitter: func(wait time.Duration) (d time.Duration) {
			w.locked(func() { d = w.between(name+" jitter", 0, wait) })
			return d
		},
	}
}

// startRunner starts a runner, wired as in service.go.
func (w *world) startRunner(p *process) {
	line, rows := wire{w, p}, store{w, p}
	log := w.logger(p)
	p.out = outbox.NewWithRows(rows, line, log)
	p.tools = toolbox.New(toolClient{w: w, p: p}, line, log)
	keeper := loop.NewKeeper(rows, beat, log)
	rounds, err := bus.NewRounds(line, bus.RoundsConfig{
		Subject: subject.Swept(subject.AgentRunner), Self: p.name, Every: sweep.Interval, Jitter: loopConfig(w, p.name+" sweeper").Jitter,
	})
	if err != nil {
		panic(err) // the model refuses no request
	}
	sweeper := sweep.New(sweep.Config{Store: rows, Bus: line, Presence: presence{p}, Rounds: rounds, Outbox: p.out, Beat: beat, Log: log})
	l := loop.New(loopConfig(w, p.name), loop.Deps{
		Store: rows, Bus: line, Tools: p.tools, Presets: w.kit.presets, Models: models{w, p}, Catalogue: w.kit.catalogue,
		Keeper: keeper, Metrics: w.kit.metrics, Log: log,
	})
	if err := errors.Join(keeper.Listen(line), p.tools.Start()); err != nil {
		panic(err) // the model refuses no request
	}
	w.locked(func() { p.loop, p.people, p.ready = l, rows, true })
	support, stop := context.WithCancel(p.ctx)
	front, end := context.WithCancel(p.ctx)
	var behind, doors sync.WaitGroup
	// They start at different times, or their tickers would always tick together.
	rest := func(who string) {
		var pause time.Duration
		w.locked(func() { pause = w.between(p.name+who, 0, time.Millisecond) })
		p.rest(pause)
	}
	behind.Go(func() { rest("keeper"); _ = keeper.Run(support) })
	behind.Go(func() { rest("outbox"); _ = p.out.Run(support) })
	doors.Go(func() { rest("sweeper"); _ = sweeper.Run(front) })
	doors.Go(func() { rest("queue"); p.consume(subject.Runs, p.slots, p.handlerFor(l)) })
	p.work.Go(func() {
		select {
		case <-p.drain:
		case <-p.ctx.Done():
		}
		end()
		doors.Wait()
		p.finishOwn()
		stop()
		behind.Wait()
		close(p.left)
	})
}

// presence replaces a process's pg.Presence.
type presence struct{ p *process }

// Steady implements sweep.Presence.
func (s presence) Steady() (d time.Duration) {
	s.p.w.locked(func() {
		if !s.p.present.IsZero() {
			d = time.Since(s.p.present)
		}
	})
	return d
}

// appear acquires the presence when Postgres can be reached, as fast as pg.Presence.
func (w *world) appear(p *process) {
	w.after(w.between(p.name+" appears", 5*time.Millisecond, 150*time.Millisecond), func() {
		switch {
		case p.dead || !p.present.IsZero():
		case w.pg.away || w.pg.hangs || p.noPostgres:
			w.appear(p)
		default:
			p.present = time.Now()
		}
	})
}

// vanish loses the presence and acquires it again.
func (w *world) vanish(p *process) {
	if p.dead || p.present.IsZero() {
		return
	}
	p.present = time.Time{}
	w.appear(p)
}

// isPresent reports whether a runner's presence is held.
func (w *world) isPresent(name string) bool {
	for _, p := range w.all {
		if p.name == name {
			return !p.present.IsZero()
		}
	}
	return false
}

// models implements loop.Models.
type models struct {
	w *world
	p *process
}

const (
	providerName = "anthropic"
	modelName    = "claude-sonnet-4-5-20250929"
	partitions   = 4
)

// For implements loop.Models.
func (m models) For(context.Context, string) (string, loop.Model, error) {
	c, err := anthropic.New(llm.Config{
		HTTP: &http.Client{Transport: transport(m)}, BaseURL: "http://broker/egress/anthropic", FirstByte: 4 * time.Second, Idle: 4 * time.Second,
	})
	return anthropic.Dialect, c, err
}

// logger returns a logger that writes to the trace.
func (w *world) logger(p *process) *slog.Logger {
	if w.out == nil {
		return slog.New(slog.DiscardHandler)
	}
	return slog.New(slog.NewTextHandler(logTo{w, p}, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}}))
}

type logTo struct {
	w *world
	p *process
}

// Write implements io.Writer.
func (l logTo) Write(b []byte) (int, error) {
	l.w.locked(func() {
		hash := l.w.hash // a log is no part of what happens
		l.w.note("      ", l.p.name, "log", string(b[:len(b)-1]))
		l.w.hash = hash
	})
	return len(b), nil
}

// inWork is the run that a handler works on. Claim sets it.
type inWork struct {
	run   id.Run
	epoch int64
}

type inWorkKey struct{}

// handlerFor is the loop's handler; the world knows what it holds.
func (p *process) handlerFor(l *loop.Loop) handler {
	return func(ctx context.Context, m *bus.Message, attempt int, draining <-chan struct{}) error {
		held := &inWork{}
		err := l.HandleMessage(context.WithValue(ctx, inWorkKey{}, held), m, attempt, draining)
		p.w.locked(func() {
			if held.epoch > 0 && p.holding[held.run] == held.epoch {
				delete(p.holding, held.run)
			}
		})
		return err
	}
}
