package failures_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"signalbox.dev/pkg/subject"
	"signalbox.dev/services/e2e/world"
)

// deadline is the time in which a run must end, whatever its provider does: all attempts of runner
// and broker take a third of it.
const deadline = world.Timeout

func TestFailures(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 4*world.Timeout)
	defer cancel()
	// The broker's timeouts for a provider are short, and the runner's are longer.
	r := newRig(ctx, t, map[string][]string{
		world.SimulatorName: {"SIMULATOR_REQUESTS=2000"}, // enough to count all of them
		subject.AgentRunner: {"AGENT_RUNNER_MODEL_BACKOFF=50ms", "AGENT_RUNNER_FIRST_BYTE=30s", "AGENT_RUNNER_IDLE=30s"},
		subject.CredentialBroker: {
			"CREDENTIAL_BROKER_HEADERS_TIMEOUT=3s", "CREDENTIAL_BROKER_GATE_TIMEOUT=500ms", "CREDENTIAL_BROKER_FIRST_EVENT_TIMEOUT=3s", "CREDENTIAL_BROKER_IDLE_TIMEOUT=3s",
		},
	})
	var all []*trial
	for i, f := range failures() {
		for _, dialect := range []string{"anthropic", "openai"} {
			for _, s := range f.settings() {
				all = append(all, &trial{failure: &f, dialect: dialect, setting: s, script: fmt.Sprintf("failure-%d-%s-%s", i, dialect, s)})
			}
		}
	}
	owners, err := r.NewMembers(ctx, "", "owner", len(all))
	if err != nil {
		t.Fatal(err)
	}
	// All at once, because most of them wait, each in a separate workspace.
	var wg sync.WaitGroup
	for i, m := range all {
		m.Client = r.Client(0, owners[i])
		wg.Go(func() { m.err = r.try(ctx, m) })
	}
	wg.Wait()
	known, err := r.known(ctx, all)
	if err != nil {
		t.Error(err)
	}
	for _, m := range all {
		t.Run(strings.Join([]string{m.failure.name, m.dialect, string(m.setting)}, "/"), func(t *testing.T) {
			t.Parallel()
			m.check(t, known[m.Who.Workspace])
		})
	}
}

// trial is one run that experiences a failure, with its result.
type trial struct {
	world.Client
	failure *failure
	dialect string
	setting setting
	script  string

	run    world.Run
	seen   string // the viewer's text at the end
	last   string // event
	shown  int    // the number of retractions (step-retry)
	stored string // of the assistant's messages
	asked  map[string]int
	tokens int // the number of different credentials of the first account that the provider got
	took   time.Duration
	err    error
}

// try stores the accounts and runs into the failure.
func (r *rig) try(ctx context.Context, m *trial) error {
	if err := r.PutScript(ctx, m.script, m.failure.script(m.dialect, m.setting)); err != nil {
		return err
	}
	if err := r.store(ctx, m); err != nil {
		return fmt.Errorf("store the accounts: %w", err)
	}
	var made struct{ Session struct{ ID string } }
	body := map[string]any{"model": "sim/" + m.script, "provider": m.dialect}
	if err := m.Call(ctx, world.Request{Method: http.MethodPost, Path: "/api/sessions", Body: body}, &made); err != nil {
		return err
	}
	start := time.Now()
	s, err := m.Send(ctx, made.Session.ID, world.Sending{Content: "Count to five."})
	if err != nil {
		return err
	}
	defer s.Close()
	if err := m.watch(s); err != nil {
		return err
	}
	m.took = time.Since(start)
	if m.run, err = m.Run(ctx, s.Run); err != nil {
		return err
	}
	messages, err := m.Messages(ctx, made.Session.ID)
	if err != nil {
		return err
	}
	for _, msg := range messages {
		if msg.Role == "assistant" {
			m.stored += msg.Text()
		}
	}
	return r.count(ctx, m)
}

// store adds the accounts, the failing one first.
func (r *rig) store(ctx context.Context, m *trial) error {
	base := r.Simulator
	if m.failure.base != nil {
		base = m.failure.base(r)
	}
	var err error
	if m.failure.signedIn {
		err = r.signIn(ctx, m.Who, m.dialect, firstAccount)
	} else {
		err = r.add(ctx, m.Who, m.dialect, "", firstAccount, base+mount[m.dialect])
	}
	if err != nil || m.setting != two {
		return err
	}
	return r.add(ctx, m.Who, m.dialect, "", secondAccount, r.Simulator+mount[m.dialect])
}

// watch reads the events as a viewer does: step-retry retracts the text of the step.
func (m *trial) watch(s *world.Stream) error {
	for {
		ev, err := s.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		m.last = ev.Type + " " + string(ev.Data)
		switch ev.Type {
		case "text-delta":
			var d struct{ Delta string }
			if err := json.Unmarshal(ev.Data, &d); err != nil {
				return err
			}
			m.seen += d.Delta
		case "step-retry":
			m.shown++
			m.seen = ""
		}
	}
}

// count gets the number of requests by account from the simulator.
func (r *rig) count(ctx context.Context, m *trial) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, r.Simulator+"/simulator/requests?limit=100&script="+url.QueryEscape(m.script), nil)
	if err != nil {
		return err
	}
	res, err := r.HTTP.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	var out struct {
		Requests []struct {
			Rule   string
			Header http.Header
		}
	}
	if err := json.NewDecoder(res.Body).Decode(&out); err != nil {
		return err
	}
	m.asked = map[string]int{}
	tokens := map[string]bool{}
	for _, q := range out.Requests {
		m.asked[q.Rule]++
		if q.Rule == firstAccount {
			tokens[q.Header.Get("Authorization")+q.Header.Get("X-Api-Key")] = true
		}
	}
	m.tokens = len(tokens)
	return nil
}

// accountState is the stored state of a workspace's accounts.
type accountState struct {
	stats  map[string]map[string]int64 // by account and reason
	parked map[string]parking          // by account; only parked ones
}

type parking struct {
	reason string
	length time.Duration
}

func (s *accountState) requests() (n int64) {
	for _, reasons := range s.stats {
		for _, k := range reasons {
			n += k
		}
	}
	return n
}

// known returns the stored state of the accounts by workspace, once all of it is written: brokers
// write it with a delay.
func (r *rig) known(ctx context.Context, all []*trial) (map[string]*accountState, error) {
	ctx, cancel := context.WithTimeout(ctx, world.Timeout)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		known, err := r.accountStates(ctx)
		if err != nil {
			return nil, err
		}
		missing := ""
		for _, m := range all {
			expected := accountState{stats: m.failure.want(m.setting).stats}
			if s := known[m.Who.Workspace]; m.err == nil && (s == nil || s.requests() < expected.requests()) {
				missing = m.script
			}
		}
		if missing == "" {
			return known, nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return known, fmt.Errorf("the statistics of accounts are incomplete, for example of %s", missing)
		}
	}
}

func (r *rig) accountStates(ctx context.Context) (map[string]*accountState, error) {
	known := map[string]*accountState{}
	of := func(workspace string) *accountState {
		if known[workspace] == nil {
			known[workspace] = &accountState{map[string]map[string]int64{}, map[string]parking{}}
		}
		return known[workspace]
	}
	rows, err := r.db.Query(ctx, `
		select a.workspace_id::text, a.label, s.reason, s.requests, 0::float8 from credentials.account_stats s join credentials.accounts a on a.id = s.account_id
		union all
		select a.workspace_id::text, a.label, l.reason, 0, extract(epoch from l.until - l.at)::float8
		from credentials.account_limits l join credentials.accounts a on a.id = l.account_id where l.until is not null`)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var workspace, label, reason string
		var requests int64
		var seconds float64
		if err := rows.Scan(&workspace, &label, &reason, &requests, &seconds); err != nil {
			return nil, err
		}
		s := of(workspace)
		if requests == 0 {
			s.parked[label] = parking{reason, time.Duration(seconds * float64(time.Second))}
			continue
		}
		if s.stats[label] == nil {
			s.stats[label] = map[string]int64{}
		}
		s.stats[label][reason] += requests
	}
	return known, rows.Err()
}

func (m *trial) check(t *testing.T, known *accountState) {
	t.Helper()
	if m.err != nil {
		t.Fatal(m.err)
	}
	t.Logf("%s in %s: %.300s", m.run.State, m.took.Round(time.Millisecond), m.last)
	w := m.failure.want(m.setting)
	if w.code == "" {
		m.checkAnswer(t)
	} else {
		m.checkError(t, w.code)
	}
	if m.took > deadline {
		t.Errorf("it took %s, want at most %s", m.took, deadline)
	}
	if diff := cmp.Diff(w.asked, m.asked); diff != "" {
		t.Errorf("requests to the provider by account (-want +got):\n%s", diff)
	}
	if m.shown != w.shown {
		t.Errorf("text was retracted %d times, want %d", m.shown, w.shown)
	}
	if w.refreshed != (m.tokens == 2) {
		t.Errorf("the provider got %d credentials of the first account; its token should be renewed: %t", m.tokens, w.refreshed)
	}
	m.checkAccounts(t, w, known)
}

// checkAccounts compares the stored state of the accounts.
func (m *trial) checkAccounts(t *testing.T, w want, known *accountState) {
	t.Helper()
	if known == nil {
		t.Fatal("the accounts have no stored state")
	}
	if m.failure.reason == good && w.code != "" {
		// The runner stops reading at bytes that it cannot parse, before or after the broker
		// has passed on all of them.
		for _, reasons := range known.stats {
			reasons[good] += reasons["CANCELLED"]
			delete(reasons, "CANCELLED")
		}
	}
	if diff := cmp.Diff(w.stats, known.stats); diff != "" {
		t.Errorf("statistics of the accounts (-want +got):\n%s", diff)
	}
	parked := map[string]parking{}
	if w.parked > 0 {
		parked[firstAccount] = parking{m.failure.reason, w.parked}
	}
	if diff := cmp.Diff(parked, known.parked, cmp.AllowUnexported(parking{})); diff != "" {
		t.Errorf("parked accounts (-want +got):\n%s", diff)
	}
}

func (m *trial) checkAnswer(t *testing.T) {
	t.Helper()
	if m.run.State != "done" || m.run.FinishReason == nil || *m.run.FinishReason != "stop" || m.run.Error != nil {
		t.Errorf("the run is %+v with the error %+v, want it done", m.run, m.run.Error)
	}
	if m.seen != whole || m.stored != whole || m.run.Text != whole {
		t.Errorf("the viewer has %q, the session %q, the run %q, want %q", m.seen, m.stored, m.run.Text, whole)
	}
	if !strings.HasPrefix(m.last, "done ") {
		t.Errorf("the last event is %.300s, want done", m.last)
	}
}

func (m *trial) checkError(t *testing.T, code string) {
	t.Helper()
	if m.run.State != "failed" || m.run.Error == nil || m.run.Error.Code != code || m.run.Error.Message == "" {
		t.Errorf("the run is %+v with the error %+v, want it failed with %s", m.run, m.run.Error, code)
	}
	if m.stored != "" || m.run.Text != "" {
		t.Errorf("the session keeps %q and the run %q of a truncated answer", m.stored, m.run.Text)
	}
	if !strings.HasPrefix(m.last, "error ") || !strings.Contains(m.last, code) {
		t.Errorf("the last event is %.300s, want the error %s", m.last, code)
	}
}
