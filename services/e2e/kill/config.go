package kill

import (
	"cmp"
	"context"
	"io"
	"time"

	"signalbox.dev/services/e2e/world"
)

// Config configures a run. Dir is required, and either Programs or World.
type Config struct {
	// Programs is a folder that world.Build has filled; Dir is for logs.
	Programs, Dir string
	// World is an installation whose parts have the environment that Environment returns, and
	// tool-executor-farends as the tool executor. Nil starts a cluster. Run does not close it.
	World *world.World
	// FarEnd is the address at which to listen as the far end; "" is one that is free on this
	// machine.
	FarEnd string
	Seed   uint64
	// Kills is the number of kills; 0 means 140.
	Kills int
	// Least and Most are the pause between kills; 0 means 1 s and 2 s.
	Least, Most time.Duration
	// Rate is the number of runs offered per second; 0 means 50.
	Rate float64
	// Talkers is the number of concurrent conversations; 0 means 120. If they are too few for
	// the rate, some offered runs are dropped.
	Talkers int
	// Only lists prefixes of the names of parts to kill; empty means all.
	Only []string
	// Restarts is how often each replica of each service is stopped and started again, one after
	// the other, instead of kills; 0 means kills. Services then call each other through a
	// balancer, as in Kubernetes. Not with World.
	Restarts int
	// Disturb breaks things, instead of the killer, and returns when the system is whole again.
	// It calls Died when it breaks something.
	Disturb func(ctx context.Context, died Died) error
	// Versions is true if gateways of several versions run. Events from a newer one may have
	// members that the others do not know.
	Versions bool
	// Loads changes the load while Disturb runs; nil if it stays as it begins, at Rate.
	Loads <-chan Load
	// Out gets progress reports.
	Out io.Writer
}

// Load is what the talkers are offered.
type Load struct {
	Rate float64 // runs per second
	// Wait is the share of exchanges that wait for a slow tool: such a run takes seconds, and
	// little processor time.
	Wait float64
}

// Died records that a part is broken from now on: later pauses count as its.
type Died func(part string)

const (
	// stuckAfter is the time without progress after which a run is stuck.
	stuckAfter = 60 * time.Second
	// down is how long a killed part stays down.
	leastDown, mostDown = 100 * time.Millisecond, time.Second
	// noticed is the shortest pause that counts: words come every 70 ms.
	noticed = 400 * time.Millisecond
	// slow is the shortest pause whose evidence is kept.
	slow = 5 * time.Second
	// reportEvery is the interval of progress reports.
	reportEvery = 5 * time.Second
)

func (c Config) withDefaults() Config {
	c.Kills = cmp.Or(c.Kills, 140)
	c.Least, c.Most = cmp.Or(c.Least, time.Second), cmp.Or(c.Most, 2*time.Second)
	c.Rate, c.Talkers = cmp.Or(c.Rate, 50), cmp.Or(c.Talkers, 120)
	if c.Out == nil {
		c.Out = io.Discard
	}
	return c
}
