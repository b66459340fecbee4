package pool

import (
	"context"
	"slices"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"signalbox.dev/pkg/bus"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/subject"
	credentialv1 "signalbox.dev/proto/signalbox/credential/v1"
)

const (
	announceEvery   = 200 * time.Millisecond
	announceTimeout = time.Second
	announceBatch   = 150         // accounts of a message, which is less than 1 MiB with all they may have
	announceAll     = time.Second // the least time between two announcements of everything
	maxFamilyBytes  = 129         // of a family or a model, as another instance names it
	maxRawBytes     = 100         // of a header that operators are shown
)

// subscribe subscribes to what other instances announce, and returns how to unsubscribe; nil
// if it failed.
func (s *Set) subscribe(ctx context.Context) (unsubscribe func()) {
	if s.cfg.Bus == nil {
		return func() {}
	}
	states, err := s.cfg.Bus.Subscribe(subject.AllCredStates, s.receiveStates)
	if err == nil {
		var changes *bus.Subscription
		if changes, err = s.cfg.Bus.Subscribe(subject.AllCredAccounts, s.receiveChanged); err == nil {
			ignore := s.cfg.Bus.OnReconnect(func() { s.missed.Store(true) })
			return func() {
				ignore()
				_ = states.Unsubscribe() // the bus ends with the process
				_ = changes.Unsubscribe()
			}
		}
		_ = states.Unsubscribe()
	}
	if s.mayWarn("subscribe") {
		s.cfg.Log.ErrorContext(ctx, "cannot subscribe to other instances: will retry", "error", err)
	}
	return nil
}

// catchUp makes up for announcements that were missed, here or elsewhere, while the bus was
// away: this instance announces all it knows, and asks the others to do the same. It also
// does so when another instance asks. An older version neither asks nor answers.
func (s *Set) catchUp(ctx context.Context) {
	if s.cfg.Bus == nil || !s.cfg.Bus.Connected() {
		return
	}
	if s.missed.Swap(false) {
		s.wanted.Store(true)
		if err := s.publish(ctx, subject.CredState(s.instance), &credentialv1.AccountStates{InstanceId: s.instance.String(), TellAll: true}); err != nil {
			s.missed.Store(true)
			return
		}
	}
	if now := time.Now(); now.Sub(s.toldAll) >= announceAll && s.wanted.Swap(false) {
		s.toldAll = now
		for _, p := range s.all() {
			p.MarkAll(ToPeers)
		}
	}
}

func (s *Set) publish(ctx context.Context, subj string, m proto.Message) error {
	ctx, cancel := context.WithTimeout(ctx, announceTimeout)
	defer cancel()
	return s.cfg.Bus.Nudge(ctx, subj, m)
}

// announce sends other instances what changed since the last call. Without a connection it
// keeps that.
func (s *Set) announce(ctx context.Context) {
	if s.cfg.Bus == nil || !s.cfg.Bus.Connected() {
		return
	}
	now := time.Now()
	for o, p := range s.all() {
		states := p.Changes(now, ToPeers)
		for batch := range slices.Chunk(states, announceBatch) {
			m := &credentialv1.AccountStates{InstanceId: s.instance.String()}
			for _, x := range batch {
				m.Accounts = append(m.Accounts, stateMessage(o, x))
			}
			if err := s.publish(ctx, subject.CredState(s.instance), m); err != nil {
				p.Mark(ToPeers, states)
				s.cfg.Log.WarnContext(ctx, "cannot send account states to other instances: will retry", "error", err)
				return
			}
		}
	}
}

func stateMessage(o owner, x State) *credentialv1.AccountState {
	m := &credentialv1.AccountState{
		AccountId: x.Account.String(), Provider: o.provider, Environment: o.environment, CountingSince: timestamppb.New(x.Since),
		Counters: countersMessage(x.Counters), Told: countersMessage(x.Told), WorkspaceId: workspaceText(o.workspace),
	}
	for _, l := range x.Limits {
		lm := &credentialv1.AccountLimit{
			Family: l.Family, At: timestamppb.New(l.At), Step: int32(l.Step), Reason: string(l.Reason), Status: int32(l.Status), Raw: l.Raw,
		}
		if !l.Until.IsZero() {
			lm.Until, lm.Soon = timestamppb.New(l.Until), timestamppb.New(l.Soon)
		}
		m.Limits = append(m.Limits, lm)
	}
	return m
}

func stateFrom(account id.Account, a *credentialv1.AccountState) State {
	x := State{Account: account, Since: a.GetCountingSince().AsTime(), Counters: countersFrom(a.GetCounters()), Told: countersFrom(a.GetTold())}
	for _, l := range a.GetLimits() {
		out := Limit{
			Family: clip(l.GetFamily(), maxFamilyBytes), At: l.GetAt().AsTime(), Step: int(l.GetStep()),
			Reason: Reason(l.GetReason()), Status: int(l.GetStatus()), Raw: clip(l.GetRaw(), maxRawBytes),
		}
		if l.GetUntil() != nil {
			out.Until, out.Soon = l.GetUntil().AsTime(), l.GetSoon().AsTime()
		}
		x.Limits = append(x.Limits, out)
	}
	return x
}

func countersMessage(c Counters) *credentialv1.AccountCounters {
	return &credentialv1.AccountCounters{
		TokensTaken: c.Taken, TokensReturned: c.Returned, Succeeded: c.Succeeded, RateLimited: c.Limited, Failed: c.Failed,
	}
}

func countersFrom(m *credentialv1.AccountCounters) Counters {
	return Counters{
		Taken: m.GetTokensTaken(), Returned: m.GetTokensReturned(),
		Succeeded: m.GetSucceeded(), Limited: m.GetRateLimited(), Failed: m.GetFailed(),
	}
}

// workspaceText returns a workspace as messages have it: empty for the zero one.
func workspaceText(ws id.Workspace) string {
	if id.IsZero(ws) {
		return ""
	}
	return ws.String()
}

func parseWorkspace(text string) (id.Workspace, error) {
	if text == "" {
		return id.Workspace{}, nil
	}
	return id.Parse[id.Workspace](text)
}

func clip(s string, n int) string { return s[:min(len(s), n)] }

// receiveStates merges what another instance announces of accounts, in the pools that are in
// use here: of others the rows will say it.
func (s *Set) receiveStates(ctx context.Context, raw *bus.Message) {
	m, err := bus.Decode[*credentialv1.AccountStates](raw)
	if err != nil {
		s.logInvalid(ctx, err)
		return
	}
	instance, err := uuid.Parse(m.GetInstanceId())
	if err != nil || instance == s.instance {
		return
	}
	if m.GetTellAll() {
		s.wanted.Store(true)
	}
	now := time.Now()
	for _, a := range m.GetAccounts() {
		ws, err := parseWorkspace(a.GetWorkspaceId())
		if err != nil {
			continue
		}
		account, err := id.Parse[id.Account](a.GetAccountId())
		if err != nil {
			continue
		}
		if p := s.knownPool(owner{ws, a.GetProvider(), a.GetEnvironment()}); p != nil {
			p.Merge(now, instance, stateFrom(account, a))
		}
	}
}

func (s *Set) logInvalid(ctx context.Context, err error) {
	s.cfg.Log.WarnContext(ctx, "invalid message of another instance", "error", err)
}

// announceDropped has other instances poll for changes of a workspace's accounts. One that
// misses this finds them with its next poll.
func (s *Set) announceDropped(ctx context.Context, ws id.Workspace) {
	if s.cfg.Bus == nil || !s.cfg.Bus.Connected() {
		return
	}
	m := &credentialv1.AccountsChanged{InstanceId: s.instance.String(), WorkspaceId: workspaceText(ws)}
	if err := s.publish(ctx, subject.CredAccounts(ws), m); err != nil {
		s.cfg.Log.DebugContext(ctx, "cannot tell other instances of a change", "workspace", ws, "error", err)
	}
}

func (s *Set) receiveChanged(ctx context.Context, raw *bus.Message) {
	m, err := bus.Decode[*credentialv1.AccountsChanged](raw)
	if err != nil {
		s.logInvalid(ctx, err)
		return
	}
	if m.GetInstanceId() == s.instance.String() {
		return
	}
	ws, err := parseWorkspace(m.GetWorkspaceId())
	if err != nil {
		s.logInvalid(ctx, err)
		return
	}
	s.cfg.Forget(ws) // a sign-out changes no row that a poll would find
	signal(s.pollNow)
}
