package kill

import (
	"cmp"
	"io"
	"time"
)

// Config says how much is to happen. Programs and Dir are needed.
type Config struct {
	// Programs is a folder that world.Build has filled; Dir is for logs.
	Programs, Dir string
	Seed          uint64
	// Kills is how many there are: 140 when 0.
	Kills int
	// Least and Most are the time between two kills: 1 s and 2 s when 0.
	Least, Most time.Duration
	// Rate is the runs per second that are offered: 50 when 0.
	Rate float64
	// Talkers is how many conversations are held at a time: with fewer than the rate
	// needs, not all that is offered is carried. 120 when 0.
	Talkers int
	// Only are prefixes of the names of the parts that are killed; none stands for all.
	Only []string
	// Out gets lines that tell how it goes.
	Out io.Writer
}

const (
	// stuckAfter is how long a run may show no progress.
	stuckAfter = 60 * time.Second
	// down is how long a killed part stays away.
	leastDown, mostDown = 100 * time.Millisecond, time.Second
	// noticed is from which length on a pause counts as one: words come every 70 ms.
	noticed = 400 * time.Millisecond
	// slow is from which length on a pause is told with all that is known of it.
	slow = 5 * time.Second
	// reportEvery is how often a line tells how it goes.
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
