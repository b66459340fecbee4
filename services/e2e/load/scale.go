package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"signalbox.dev/services/e2e/world"
)

// The capacity model of docs/scale.md: what a system uses is what it uses while idle, and a price
// for each unit of work. The units:
const (
	aRun      = iota // a session with one message: the requests, and the run's begin and end
	aStep            // a model call that ends with a tool call, the call, and both commits
	anEvent          // an event of a run log, stored, and copied to PostgreSQL
	aDelivery        // an event that a viewer gets
	anOpening        // a stream that a further viewer opens
	anUpdate         // an editor's update of a document, committed
	aRelay           // an update that another editor gets
	numUnits
)

var unitNames = [numUnits]string{"run", "step", "event", "delivery", "opened stream", "document update", "update relayed"}

type units [numUnits]float64

// mix is an offered load.
type mix struct {
	name                        string
	runs, steps, words, viewers int // steps of a run, words of its last step, and viewers of it
	documents, editors, rate    int // editors of each document; updates a second in all
	long                        time.Duration
}

// baseMixes each have much of one unit.
var baseMixes = []mix{
	{name: "runs", runs: 120, steps: 1, words: 1, viewers: 1, long: 8 * time.Second},
	{name: "steps", runs: 16, steps: 20, words: 1, viewers: 1, long: 8 * time.Second},
	{name: "events", runs: 24, steps: 1, words: 150, viewers: 1, long: 6 * time.Second},
	{name: "deliveries", runs: 12, steps: 1, words: 150, viewers: 12, long: 6 * time.Second},
	{name: "openings", runs: 40, steps: 1, words: 1, viewers: 12, long: 8 * time.Second},
	{name: "updates", documents: 100, editors: 2, rate: 150, long: 8 * time.Second},
	{name: "relays", documents: 10, editors: 15, rate: 60, long: 8 * time.Second},
}

// provenMixes are mixed differently from each other and from those of the base.
var provenMixes = []mix{
	{name: "many conversations, some editing", runs: 100, steps: 4, words: 40, viewers: 2, documents: 40, editors: 4, rate: 60, long: 12 * time.Second},
	{name: "few conversations with many viewers, much editing", runs: 30, steps: 2, words: 100, viewers: 8, documents: 120, editors: 3, rate: 250, long: 12 * time.Second},
}

// tolerance is how far a prediction may be off.
const tolerance = 0.2

// used is what a system has used: microseconds of CPU time by part, and other counters by name.
type used map[string]float64

// Names of counters.
const (
	walBytes     = "WAL bytes"
	rowsWritten  = "rows written"
	natsMessages = "NATS messages, in and out"
	natsBytes    = "NATS bytes, in and out"
	allCPU       = "all parts but the simulated provider"
)

// counter is a system under measurement.
type counter struct {
	world   *world.World
	members []world.Member
}

func newCounter(ctx context.Context, w *world.World) (*counter, error) {
	members, err := w.NewMembers(ctx, "", "owner", 48)
	return &counter{w, members}, err
}

// now returns what has been used so far.
func (c *counter) now(ctx context.Context) (used, error) {
	u := used{}
	for part, d := range usage(c.world) {
		service := strings.TrimSuffix(strings.TrimRight(part, "0123456789"), "-")
		u[service] += milliseconds(d) * 1000
		if service != world.SimulatorName {
			u[allCPU] += milliseconds(d) * 1000
		}
	}
	db, err := pgx.Connect(ctx, c.world.Database)
	if err != nil {
		return nil, err
	}
	defer func() { _ = db.Close(context.WithoutCancel(ctx)) }()
	var wal, rows float64
	if err := db.QueryRow(ctx, `
		SELECT pg_current_wal_insert_lsn() - '0/0', tup_inserted + tup_updated + tup_deleted
		FROM pg_stat_database WHERE datname = current_database()`).Scan(&wal, &rows); err != nil {
		return nil, err
	}
	u[walBytes], u[rowsWritten] = wal, rows
	var bus struct {
		InMsgs   float64 `json:"in_msgs"`
		OutMsgs  float64 `json:"out_msgs"`
		InBytes  float64 `json:"in_bytes"`
		OutBytes float64 `json:"out_bytes"`
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.world.Proc(world.NATSName).Ops+"/varz", nil)
	if err != nil {
		return nil, err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	err = errors.Join(json.NewDecoder(res.Body).Decode(&bus), res.Body.Close())
	u[natsMessages], u[natsBytes] = bus.InMsgs+bus.OutMsgs, bus.InBytes+bus.OutBytes
	return u, err
}

// observation is a load that was offered, and what was used.
type observation struct {
	units   units
	used    used
	seconds float64
}

// observe offers a load, waits until it is done, and for what is written behind.
func (c *counter) observe(ctx context.Context, m mix) (o observation, err error) {
	if m.runs > 0 {
		if err := c.world.PutScript(ctx, m.script(), m.text()); err != nil {
			return o, err
		}
	}
	p := &press{}
	var writers []*editor
	if m.documents > 0 {
		places, err := (&ours{c.world, c.members[0]}).places(ctx, m.documents)
		if err != nil {
			return o, err
		}
		if p, err = gather(ctx, places, m.editors); err != nil {
			return o, err
		}
		defer p.close()
		for _, r := range p.rooms {
			if err := r.editors[0].begin(); err != nil {
				return o, err
			}
			writers = append(writers, r.editors[0])
		}
	}
	if err := pause(ctx, time.Second); err != nil {
		return o, err
	}
	before, err := c.now(ctx)
	if err != nil {
		return o, err
	}
	begin := time.Now()
	group, inner := errgroup.WithContext(ctx)
	group.Go(func() error { return pause(inner, m.long) })
	events, deliveries := make([]int, m.runs), make([]int, m.runs)
	for i := range m.runs {
		group.Go(func() (err error) {
			if err := pause(inner, m.long*time.Duration(i)/time.Duration(m.runs)); err != nil {
				return err
			}
			events[i], deliveries[i], err = c.talk(inner, i, m)
			return err
		})
	}
	if len(writers) > 0 {
		group.Go(func() error {
			had := p.delivered.Load()
			typed, err := typing(inner, writers, m.rate, m.long)
			o.units[anUpdate], o.units[aRelay] = float64(typed), float64(typed*(m.editors-1))
			return errors.Join(err, p.arrived(inner, had+int64(typed*(m.editors-1))))
		})
	}
	if err := group.Wait(); err != nil {
		return o, fmt.Errorf("%s: %w", m.name, err)
	}
	if err := pause(ctx, 2*time.Second); err != nil { // the copy of the run log, and what the broker learned
		return o, err
	}
	after, err := c.now(ctx)
	if err != nil {
		return o, err
	}
	o.seconds, o.used = time.Since(begin).Seconds(), used{}
	for name, n := range after {
		o.used[name] = n - before[name]
	}
	o.units[aRun], o.units[aStep], o.units[anOpening] = float64(m.runs), float64(m.runs*(m.steps-1)), float64(m.runs*(m.viewers-1))
	for i := range m.runs {
		o.units[anEvent] += float64(events[i])
		o.units[aDelivery] += float64(deliveries[i])
	}
	return o, nil
}

func (m mix) script() string { return fmt.Sprintf("scale-%d-%d", m.steps, m.words) }

// text is the script of a run. The words are further apart than a runner's events, so that each is
// an event.
func (m mix) text() string {
	return fmt.Sprintf(`
rules:
  - when: {turn: %d}
    then:
      - say: {text: %q, delay: 30ms}
  - then:
      - call: {tool: get_current_datetime, args: {}}
`, m.steps, strings.TrimSpace(strings.Repeat("word ", m.words)))
}

// talk has a conversation of one message, and returns the number of its events and of those that
// its viewers got.
func (c *counter) talk(ctx context.Context, n int, m mix) (events, deliveries int, err error) {
	who := c.members[n%len(c.members)]
	client := func(viewer int) world.Client { return c.world.Client((n+viewer)%len(c.world.Gateways), who) }
	session, err := client(0).NewSession(ctx, "sim/"+m.script())
	if err != nil {
		return 0, 0, err
	}
	stream, err := client(0).Send(ctx, session, world.Sending{Content: "go"})
	if err != nil {
		return 0, 0, err
	}
	var others errgroup.Group
	counts := make([]int, m.viewers)
	for v := 1; v < m.viewers; v++ {
		others.Go(func() error {
			s, err := client(v).Watch(ctx, world.RunEvents(stream.Run), "")
			if err != nil {
				return err
			}
			counts[v], err = countEvents(s)
			return err
		})
	}
	counts[0], err = countEvents(stream)
	if err := errors.Join(err, others.Wait()); err != nil {
		return 0, 0, err
	}
	for _, n := range counts {
		deliveries += n
	}
	return counts[0], deliveries, nil
}

// countEvents reads a stream of a run to its end.
func countEvents(s *world.Stream) (n int, err error) {
	defer quietly(s.Close)
	for {
		e, err := s.Next()
		switch {
		case errors.Is(err, io.EOF) && n > 0:
			return n, nil
		case err != nil:
			return n, fmt.Errorf("after %d events: %w", n, err)
		case e.Type == "error":
			return n, fmt.Errorf("the run failed: %s", e.Data)
		}
		n++
		if e.Type == "done" {
			return n, nil
		}
	}
}

// model is what each thing that a system uses costs: a second of being idle, and the units.
type model struct {
	idle  used
	price map[string]units
}

// fit finds the prices, none below zero, that explain the observations best. Each counts by its
// relative error.
func fit(idle used, seen []observation) model {
	m := model{idle, map[string]units{}}
	for name := range idle {
		rows, want := make([]units, len(seen)), make([]float64, len(seen))
		for i, o := range seen {
			want[i] = max(o.used[name]-idle[name]*o.seconds, 0)
			weight := 1 / max(o.used[name], 1)
			want[i] *= weight
			for j, n := range o.units {
				rows[i][j] = n * weight
			}
		}
		var x units
		for range 20_000 { // coordinate descent
			for j := range x {
				var over, under float64
				for i, row := range rows {
					rest := want[i]
					for k, n := range row {
						if k != j {
							rest -= n * x[k]
						}
					}
					over += row[j] * rest
					under += row[j] * row[j]
				}
				if under > 0 {
					x[j] = max(over/under, 0)
				}
			}
		}
		m.price[name] = x
	}
	return m
}

// predict returns what a load is expected to use.
func (m model) predict(name string, n units, seconds float64) float64 {
	sum := m.idle[name] * seconds
	for j, price := range m.price[name] {
		sum += price * n[j]
	}
	return sum
}

// scale measures the capacity model's prices, and verifies what it predicts for other loads.
func scale(ctx context.Context, b *bench) error {
	w, err := b.world(ctx, world.Options{Replicas: 1, Partitions: stagePartitions})
	if err != nil {
		return err
	}
	defer quietly(w.Close)
	c, err := newCounter(ctx, w)
	if err != nil {
		return err
	}
	if _, err := c.observe(ctx, mix{name: "warming up", runs: 20, steps: 3, words: 10, viewers: 2, documents: 5, editors: 3, rate: 20, long: 3 * time.Second}); err != nil {
		return err
	}
	// The base before and after the loads to predict, because the machine may change meanwhile.
	var base, proven, rests []observation
	rest := func() error {
		o, err := c.observe(ctx, mix{name: "nothing", long: 8 * time.Second})
		rests = append(rests, o)
		return err
	}
	all := func(mixes []mix, into *[]observation) error {
		for _, m := range mixes {
			m.long = max(time.Duration(b.times(int(m.long))), time.Second)
			o, err := c.observe(ctx, m)
			if err != nil {
				return err
			}
			*into = append(*into, o)
		}
		return nil
	}
	if err := errors.Join(rest(), all(baseMixes, &base), all(provenMixes, &proven), all(baseMixes, &base), rest()); err != nil {
		return err
	}
	idle := used{}
	for _, o := range rests {
		for name, n := range o.used {
			idle[name] += n / o.seconds / float64(len(rests))
		}
	}
	m := fit(idle, base)
	b.prices(m)
	return b.verify(m, proven)
}

// prices prints a model.
func (b *bench) prices(m model) {
	names := slices.Sorted(maps.Keys(m.price))
	for _, name := range names {
		unit := "µs of CPU time"
		if name == walBytes || name == rowsWritten || name == natsMessages || name == natsBytes {
			unit = ""
		}
		b.figure(name+", idle, a second", m.idle[name], unit)
		for j, price := range m.price[name] {
			b.figure(name+", a "+unitNames[j], price, unit)
		}
	}
}

// verify compares predictions with what was observed. The sum of all parts, WAL and the bus have to
// be right.
func (b *bench) verify(m model, proven []observation) error {
	var wrong []string
	for i, o := range proven {
		for _, name := range slices.Sorted(maps.Keys(o.used)) {
			predicted := m.predict(name, o.units, o.seconds)
			off := predicted/max(o.used[name], 1) - 1
			b.figure(fmt.Sprintf("%s: %s, predicted", provenMixes[i].name, name), predicted, "")
			b.figure(fmt.Sprintf("%s: %s, observed", provenMixes[i].name, name), o.used[name], "")
			b.figure(fmt.Sprintf("%s: %s, prediction is off by", provenMixes[i].name, name), 100*off, "%")
			if math.Abs(off) > tolerance && slices.Contains([]string{allCPU, walBytes, natsBytes}, name) {
				wrong = append(wrong, fmt.Sprintf("%s of %q by %.0f %%", name, provenMixes[i].name, 100*off))
			}
		}
	}
	if len(wrong) > 0 {
		return fmt.Errorf("predictions are off by more than %.0f %%: %s", 100*tolerance, strings.Join(wrong, "; "))
	}
	return nil
}

// wideMixes are the loads whose costs should not depend on the number of replicas.
var wideMixes = []mix{
	{name: "step", runs: 24, steps: 20, words: 1, viewers: 1, long: 10 * time.Second},
	{name: "stream", runs: 60, steps: 1, words: 150, viewers: 1, long: 10 * time.Second},
	{name: "stream of twelve of a run", runs: 24, steps: 1, words: 150, viewers: 12, long: 8 * time.Second},
}

// wide measures what steps and streams cost with four replicas of each service, beside one. The two
// systems run at the same time and take turns.
func wide(ctx context.Context, b *bench) error {
	var systems []*counter
	for _, n := range []int{1, 4} {
		w, err := b.world(ctx, world.Options{Replicas: n, Partitions: stagePartitions})
		if err != nil {
			return err
		}
		defer quietly(w.Close)
		c, err := newCounter(ctx, w)
		if err != nil {
			return err
		}
		systems = append(systems, c)
	}
	const rounds = 3
	var idle [2]float64 // a second of it
	for _, m := range append([]mix{{name: "nothing", long: 10 * time.Second}}, wideMixes...) {
		var cost, seconds [2]float64
		parts := [2]used{{}, {}}
		for round := range rounds + 1 {
			for i, c := range systems {
				o, err := c.observe(ctx, m)
				if err != nil {
					return err
				}
				if round == 0 {
					continue // warming up
				}
				cost[i] += o.used[allCPU] / 1000
				seconds[i] += o.seconds
				for part, n := range o.used {
					parts[i][part] += n / 1000
				}
			}
		}
		unit, per := float64(rounds*m.runs*m.steps*m.viewers), ""
		if m.runs == 0 {
			unit, per = rounds*(m.long.Seconds()+2), " for a second"
		}
		of := "CPU time of one " + m.name + per + ", with "
		b.figure(of+"1 replica of each service", cost[0]/unit, "ms")
		b.figure(of+"4 replicas", cost[1]/unit, "ms")
		b.figure(of+"4 replicas, beside 1", cost[1]/cost[0], "×")
		if m.runs == 0 {
			idle = [2]float64{cost[0] / seconds[0], cost[1] / seconds[1]}
		} else {
			b.figure(of+"4 replicas, beside 1, without what they use while idle", (cost[1]-idle[1]*seconds[1])/(cost[0]-idle[0]*seconds[0]), "×")
		}
		for _, part := range append(world.Services(), world.PostgresName, world.NATSName) {
			b.figure(of+"1 and 4 replicas: of "+part, parts[0][part]/unit, "ms")
			b.figure(of+"1 and 4 replicas: of "+part, parts[1][part]/unit, "ms")
		}
	}
	return nil
}
