package faults_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"signalbox.dev/services/e2e/world"
)

// counts has a cluster's goroutines by process, and its connections by user and link.
type counts struct {
	goroutines map[string]int
	postgres   map[string]int // by login
	nats       map[string]int // by user
	interest   map[string]int // subscriptions by user
	links      map[string]int // through the proxies, without those to Postgres
}

// count counts everything. Parts that do not answer are left out.
func (r *rig) count() counts {
	ctx, cancel := context.WithTimeout(r.ctx, 10*time.Second)
	defer cancel()
	c := counts{
		goroutines: map[string]int{}, postgres: map[string]int{}, nats: map[string]int{}, interest: map[string]int{}, links: map[string]int{},
	}
	for _, p := range r.Procs() {
		if p.Service == world.NATSName || p.Service == world.SimulatorName {
			continue
		}
		if n, err := r.metric(ctx, p, "go_goroutines "); err == nil {
			c.goroutines[p.Name()] = n
		}
	}
	r.mu.Lock()
	for name, all := range r.links {
		for _, p := range all {
			if !strings.HasSuffix(name, " "+world.PostgresName) {
				c.links[name] += p.Stats().Open
			}
		}
	}
	r.mu.Unlock()
	_ = errors.Join(r.countBackends(ctx, c.postgres), r.countClients(ctx, c.nats, c.interest)) // the missing ones count as not returned
	return c
}

func (r *rig) get(ctx context.Context, url string, read func(io.Reader) error) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	res, err := r.http.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return errors.New(res.Status)
	}
	return read(res.Body)
}

// metric reads a number from a process's metrics: from the line with this prefix.
func (r *rig) metric(ctx context.Context, p *world.Proc, line string) (n int, err error) {
	err = r.get(ctx, p.Ops+"/metrics", func(body io.Reader) error {
		for lines := bufio.NewScanner(body); lines.Scan(); {
			if strings.HasPrefix(lines.Text(), line) {
				n, err = strconv.Atoi(lines.Text()[strings.LastIndexByte(lines.Text(), ' ')+1:])
				return err
			}
		}
		return fmt.Errorf("%s has no metric %s", p.Name(), line)
	})
	return n, err
}

func (r *rig) countBackends(ctx context.Context, into map[string]int) error {
	rows, err := r.db.Query(ctx, `select usename, count(*) from pg_stat_activity where usename like 'signalbox\_%' group by usename`)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var login string
		var n int
		if err := rows.Scan(&login, &n); err != nil {
			return err
		}
		into[login] = n
	}
	return rows.Err()
}

func (r *rig) countClients(ctx context.Context, conns, interest map[string]int) error {
	return r.get(ctx, r.Proc(world.NATSName).Ops+"/connz?auth=1", func(body io.Reader) error {
		var z struct {
			Connections []struct {
				User string `json:"authorized_user"`
				Subs int    `json:"subscriptions"`
			} `json:"connections"`
		}
		if err := json.NewDecoder(body).Decode(&z); err != nil {
			return err
		}
		for _, c := range z.Connections {
			conns[c.User]++
			interest[c.User] += c.Subs
		}
		return nil
	})
}

// Tolerances: increases that are no leak.
const (
	someGoroutines    = 12 // of one process
	someConnections   = 2  // of one link
	someSubscriptions = 4  // of one user
	idleGoroutines    = 40 // of one process, with cached resources
)

// returned lists the counts that are still higher than before. Resources that are cached for a
// while may be left out.
func (r *rig) returned(kept bool) []string {
	now := r.count()
	var more []string
	check := func(what string, before, now map[string]int, some int) {
		for _, name := range slices.Sorted(maps.Keys(before)) {
			if n, ok := now[name]; !ok || n > before[name]+some {
				more = append(more, fmt.Sprintf("%s of %s: %d, before %d", what, name, n, before[name]))
			}
		}
	}
	check("nats connections", r.before.nats, now.nats, 0)
	if kept {
		check("goroutines", r.before.goroutines, now.goroutines, someGoroutines)
		check("connections", r.before.links, now.links, someConnections)
		check("subscriptions", r.before.interest, now.interest, someSubscriptions)
	} else {
		check("goroutines", r.before.goroutines, now.goroutines, idleGoroutines)
	}
	for login := range r.before.postgres {
		// One more for each process: a runner's presence connection.
		if n, may := now.postgres[login], (conns+1)*len(r.gateways); n > may {
			more = append(more, fmt.Sprintf("postgres connections of %s: %d, its processes may have %d", login, n, may))
		}
	}
	return more
}

// How long to wait for the release of resources: idle is longer than resources are cached after
// their last use (HTTP connections for 90 to 180 s, a watched session for 60 s), soon is for the
// rest.
const (
	idle = 200 * time.Second
	soon = 20 * time.Second
)

// settle stops the load and waits until all counts have returned to normal.
func (r *rig) settle(t *testing.T, within time.Duration) {
	t.Helper()
	r.load.stop()
	begun := time.Now()
	for {
		more := r.returned(within >= idle)
		if len(more) == 0 {
			t.Logf("goroutines and connections are back where they were %s after the load", time.Since(begun).Round(time.Second))
			return
		}
		if time.Since(begun) > within || !wait(r.ctx, time.Second) {
			t.Errorf("%s after the load these counts are still higher than before:\n%s", within, strings.Join(more, "\n"))
			return
		}
	}
}
