package kill

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"signalbox.dev/pkg/httpserver"
	"signalbox.dev/pkg/subject"

	"signalbox.dev/services/e2e/farend"
	"signalbox.dev/services/e2e/world"
)

// workspaces is the number of workspaces that share the conversations.
const workspaces = 16

// harness is a run of the kill test.
type harness struct {
	cfg     Config
	world   *world.World
	members []world.Member
	pauses  *pauses
	far     *farend.Server // the service that all tools call
	closers []func() error // in the order of the starts
	borders chan border    // reached by conversations
	tokens  chan struct{}  // permits to start a run; closed when no more are offered
	begun   time.Time

	mu     sync.Mutex // guards the rest
	report Report
	load   Load  // at present
	fail   error // of the harness itself
}

// Run keeps conversations going while it kills parts, and returns a report, which has the violated
// invariants. The error means that the harness itself failed.
func Run(ctx context.Context, cfg Config) (*Report, error) {
	cfg = cfg.withDefaults()
	h := &harness{cfg: cfg, pauses: newPauses(), borders: make(chan border), tokens: make(chan struct{}, max(1, int(cfg.Rate/4))), report: newReport(cfg)}
	h.say("seed %d, %d kills, %g runs/s offered to %d talkers", cfg.Seed, cfg.Kills, cfg.Rate, cfg.Talkers)
	if err := h.start(ctx); err != nil {
		return nil, errors.Join(err, h.close())
	}
	err := errors.Join(h.storm(ctx), h.close())
	h.mu.Lock()
	defer h.mu.Unlock()
	h.report.finish(h.pauses)
	return &h.report, errors.Join(err, h.fail)
}

func (h *harness) close() error {
	var errs []error
	for _, f := range slices.Backward(h.closers) {
		errs = append(errs, f())
	}
	return errors.Join(errs...)
}

// start starts the far end and the world.
func (h *harness) start(ctx context.Context) error {
	far, err := httpserver.Listen(ctx, cmp.Or(h.cfg.FarEnd, "127.0.0.1:0"))
	if err != nil {
		return err
	}
	h.far = farend.Watched(h.atFarEnd)
	web := &http.Server{Handler: h.far, ReadHeaderTimeout: world.Timeout}
	go func() { _ = web.Serve(far) }() // it ends with Close
	h.closers = append(h.closers, func() error { h.far.Close(); return web.Close() })
	if h.world = h.cfg.World; h.world == nil {
		if err := h.startWorld(ctx, "http://"+far.Addr().String()); err != nil {
			return err
		}
	}
	h.members, err = h.world.NewMembers(ctx, "", "owner", workspaces)
	return err
}

// startWorld starts a cluster.
func (h *harness) startWorld(ctx context.Context, far string) error {
	scripts := filepath.Join(h.cfg.Dir, "scripts")
	err := WriteScript(scripts)
	if err != nil {
		return err
	}
	var via func(world.Link) (string, error)
	if h.cfg.Restarts > 0 {
		b := &world.Balancer{}
		h.closers = append(h.closers, b.Close)
		via = b.Via
	}
	h.world, err = world.Start(ctx, world.Options{
		Via: via,
		Dir: h.cfg.Dir, Programs: h.cfg.Programs, Durable: true,
		Program: func(service string, _ int) string {
			if service == subject.ToolExecutor {
				return filepath.Join(h.cfg.Programs, "tool-executor-farends")
			}
			return ""
		},
		Env: func(service string, _ int) []string { return Environment(service, far, scripts) },
	})
	if h.world != nil {
		h.closers = append(h.closers, h.world.Close)
	}
	return err
}

// WriteScript writes the simulated provider's script into a new folder.
func WriteScript(dir string) error {
	return errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(filepath.Join(dir, scriptName+".yaml"), script, 0o644))
}

// Environment returns a service's additional settings: limits that are high enough for the load,
// the URL of the far end, and the folder with the script.
func Environment(service, far, scripts string) []string {
	switch service {
	case subject.ToolExecutor:
		return []string{"FAR_END_URL=" + far}
	case subject.AgentRunner:
		return []string{"AGENT_RUNNER_APPROVAL_TIME=" + patience.String()}
	case world.SimulatorName:
		return []string{"SIMULATOR_SCRIPT=" + scripts}
	case subject.Gateway:
		return []string{
			"GATEWAY_MEMBER_REQUESTS_PER_MINUTE=1000000", "GATEWAY_MEMBER_REQUESTS_BURST=1000000",
			"GATEWAY_WORKSPACE_REQUESTS_PER_MINUTE=1000000", "GATEWAY_WORKSPACE_REQUESTS_BURST=1000000",
			"GATEWAY_MEMBER_STREAMS=10000", "GATEWAY_WORKSPACE_STREAMS=10000",
		}
	}
	return nil
}

// storm is the time between the start and the end of the world.
func (h *harness) storm(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	h.begun = time.Now()
	rnd := rand.New(rand.NewPCG(h.cfg.Seed, 1))
	killer := &killer{harness: h, rnd: rand.New(rand.NewPCG(h.cfg.Seed, 2)), busy: map[string]bool{}}
	var talkers, others sync.WaitGroup
	for n := range h.cfg.Talkers {
		k := &talker{harness: h, n: n, rnd: rand.New(rand.NewPCG(rnd.Uint64(), rnd.Uint64()))}
		talkers.Go(func() { k.run(ctx) })
	}
	background, end := context.WithCancel(ctx)
	offering, enough := context.WithCancel(ctx)
	others.Go(func() { killer.supervise(background) })
	others.Go(func() { h.progress(background) })
	others.Go(func() { h.offer(offering) })
	switch {
	case h.cfg.Disturb != nil:
		if err := h.cfg.Disturb(ctx, h.died); err != nil {
			h.fatal(err)
		}
	case h.cfg.Restarts > 0:
		if err := killer.restart(ctx); err != nil {
			h.fatal(err)
		}
	default:
		killer.run(ctx)
	}
	h.count(func(r *Report) { r.Storm = time.Since(h.begun) })
	h.say("that was the last kill; %d runs are to come to their end", h.active())
	enough()
	talkers.Wait()
	end()
	others.Wait()
	h.recount()
	return context.Cause(ctx)
}

// died records what Disturb breaks.
func (h *harness) died(part string) {
	h.pauses.died(&death{part: part, at: time.Now(), lasting: true})
	h.count(func(r *Report) { r.Kills[part]++ })
	h.say("broken: %s", part)
}

// recount looks for effects that occurred a second time after their session was checked.
func (h *harness) recount() {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := 0
	for _, o := range h.far.Report().Operations {
		if o.Kind != "pure" && o.Effects > 1 {
			n++
		}
	}
	h.report.FarEffectsTwice = n
	if known := h.report.Problems[doubled]; n > known {
		h.report.Problems[doubled] = n
	}
}

// offer permits runs to start at the rate of the load. A permit that no talker takes is dropped.
func (h *harness) offer(ctx context.Context) {
	defer close(h.tokens)
	interval := func(rate float64) time.Duration { return time.Duration(float64(time.Second) / rate) }
	tick := time.NewTicker(interval(h.cfg.Rate))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case l := <-h.cfg.Loads:
			tick.Reset(interval(l.Rate))
			h.mu.Lock()
			h.load, h.report.Rate = l, max(h.report.Rate, l.Rate)
			h.mu.Unlock()
			continue
		case <-tick.C:
		}
		select {
		case h.tokens <- struct{}{}:
			h.count(func(r *Report) { r.Offered++ })
		default:
			h.count(func(r *Report) { r.NotCarried++ })
		}
	}
}

// offered waits for a permit to start a run. It returns false when no more are offered.
func (h *harness) offered(ctx context.Context) bool {
	select {
	case _, ok := <-h.tokens:
		return ok
	case <-ctx.Done():
		return false
	}
}

// progress reports the progress.
func (h *harness) progress(ctx context.Context) {
	for pause(ctx, reportEvery) {
		h.mu.Lock()
		r := &h.report
		line := fmt.Sprintf("%3.0fs  %d kills, %d messages, %d runs ended, %d problems", time.Since(h.begun).Seconds(), r.kills(), r.Messages, r.Runs, r.problems())
		h.mu.Unlock()
		h.pauses.mu.Lock()
		var all []time.Duration
		for _, p := range h.pauses.by {
			all = append(all, p...)
		}
		exact := h.pauses.exact
		h.pauses.mu.Unlock()
		q, e := quantilesOf(all), quantilesOf(exact)
		h.say("%s; pauses p50 %s p99 %s max %s (%d), of killed runners p50 %s p99 %s (%d)", line,
			short(q.P50), short(q.P99), short(q.Max), q.N, short(e.P50), short(e.P99), e.N)
	}
}

func short(d time.Duration) time.Duration { return d.Round(10 * time.Millisecond) }

func (h *harness) active() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.report.Messages - h.report.Answered
}

func (h *harness) say(format string, args ...any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	fmt.Fprintf(h.cfg.Out, strings.TrimSuffix(format, "\n")+"\n", args...)
}

func (h *harness) count(f func(*Report)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	f(&h.report)
}

// fatal records that the harness itself failed.
func (h *harness) fatal(err error) {
	h.say("the harness: %v", err)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.fail = errors.Join(h.fail, err)
}

// client returns a member's client of a random gateway.
func (h *harness) client(rnd *rand.Rand, who world.Member) world.Client {
	return h.world.Client(rnd.IntN(len(h.world.Gateways)), who)
}

// attempt is the timeout of one attempt of a request.
const attempt = 20 * time.Second

// try repeats a request at random gateways until it succeeds. It returns false if ctx is done or
// the refusal is permanent, which is a problem.
func (k *talker) try(ctx context.Context, request func(context.Context, world.Client) error) bool {
	for {
		limited, cancel := context.WithTimeout(ctx, attempt)
		err := request(limited, k.client(k.rnd, k.who))
		cancel()
		switch {
		case err == nil:
			return true
		case ctx.Err() != nil:
			return false
		case k.refusal(k.t, err):
			return false
		}
		k.count(func(r *Report) { r.Retries++ })
		if !pause(ctx, between(k.rnd, 50*time.Millisecond, 250*time.Millisecond)) {
			return false
		}
	}
}

// refusal reports whether an error is a permanent refusal, and records it.
func (h *harness) refusal(t *transcript, err error) bool {
	r, ok := errors.AsType[*world.Refused](err)
	if !ok {
		kind := "connection"
		if errors.Is(err, context.DeadlineExceeded) {
			kind = "no answer in time"
		} else if err == errNotOpen { //nolint:errorlint // the bare sentinel: the failure was recorded already
			return false
		}
		h.count(func(r *Report) { r.Failures[kind]++ })
		return false
	}
	h.count(func(rep *Report) { rep.Failures[fmt.Sprintf("%d %s", r.Status, r.Code)]++ })
	if r.Temporary() {
		return false
	}
	if t != nil {
		t.complain(refused, "%v", r)
	} else {
		h.say("refused for good: %v", r)
	}
	return true
}

// describe returns the API's view of a run.
func (k *talker) describe(ctx context.Context, run string) string {
	ctx, cancel := context.WithTimeout(ctx, attempt)
	defer cancel()
	r, err := k.client(k.rnd, k.who).Run(ctx, run)
	if err != nil {
		return err.Error()
	}
	last := "none"
	if r.LastEventID != nil {
		last = *r.LastEventID
	}
	return fmt.Sprintf("it is %s after %d steps, its last committed event is %s", r.State, r.Steps, last)
}
