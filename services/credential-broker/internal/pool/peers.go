package pool

import (
	"context"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/types/known/timestamppb"

	"signalbox.dev/pkg/bus"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/panics"
	"signalbox.dev/pkg/subject"
	credentialv1 "signalbox.dev/proto/signalbox/credential/v1"
)

const (
	tellEvery    = 200 * time.Millisecond
	tellTimeout  = time.Second
	tellBatch    = 150         // accounts of a message, which is less than 1 MiB with all they may have
	tellAllEvery = time.Second // at most, however many ask
	maxTold      = 129         // bytes of a family's or a model's name
	maxRaw       = 100         // bytes of a header that operators are shown
)

// Run tells other instances what this one learns, hears what they do, and writes it
// behind, until ctx is done; then once more, and returns nil. What it cannot do now it
// tries again.
func (s *Set) Run(ctx context.Context) error {
	if !s.begin() {
		return nil
	}
	defer s.work.Done()
	listening := s.listening(ctx)
	defer func() { listening.stop() }()
	recorded := make(chan struct{})
	s.work.Go(func() {
		defer close(recorded)
		_ = panics.Supervise(ctx, s.cfg.Log, "usage records", func(ctx context.Context) error { s.recordAll(ctx); return nil })
	})
	told, wrote, look := time.NewTicker(tellEvery), time.NewTicker(s.cfg.WriteEvery), time.NewTicker(lookEvery)
	defer told.Stop()
	defer wrote.Stop()
	defer look.Stop()
	// A slow database does not keep the bus waiting.
	writing, looking := make(chan struct{}, 1), make(chan struct{}, 1)
	lookAgain := func() {
		select {
		case looking <- struct{}{}:
			s.work.Go(func() {
				panics.Contain(ctx, s.cfg.Log, "pool changes", func() { s.look(ctx) })
				<-looking
			})
		default:
		}
	}
	lookAgain() // from now on somebody does
	write := func() {
		select {
		case writing <- struct{}{}:
			s.work.Go(func() {
				panics.Contain(ctx, s.cfg.Log, "pool state", func() { s.write(context.WithoutCancel(ctx)) })
				<-writing
			})
		default:
		}
	}
	for {
		select {
		case <-told.C:
			panics.Contain(ctx, s.cfg.Log, "pool announcements", func() {
				if !listening.on {
					listening = s.listening(ctx)
					s.away.Store(listening.on)
				}
				s.catchUp(ctx)
				s.tell(ctx)
			})
		case ws := <-s.forgotten:
			panics.Contain(ctx, s.cfg.Log, "pool announcements", func() { s.tellForget(ctx, ws) })
		case <-look.C:
			lookAgain()
		case <-s.lookNow:
			lookAgain()
		case <-wrote.C:
			write()
		case <-s.parked:
			write()
		case <-ctx.Done():
			ctx := context.WithoutCancel(ctx)
			writing <- struct{}{}
			<-recorded
			s.tell(ctx)
			s.recordLast(ctx)
			s.write(ctx) // the batch of a try that failed
			s.write(ctx) // and what came since
			return nil
		}
	}
}

// listening is that other instances are heard, or not.
type listening struct {
	on   bool
	stop func()
}

// listening listens, where there is a bus.
func (s *Set) listening(ctx context.Context) listening {
	if s.cfg.Bus == nil {
		return listening{true, func() {}}
	}
	stop, err := s.listen()
	if err != nil {
		if now := time.Now(); now.Sub(s.deaf) >= quiet {
			s.deaf = now
			s.cfg.Log.ErrorContext(ctx, "other instances are not heard: it is tried again", "error", err)
		}
		return listening{false, func() {}}
	}
	return listening{true, stop}
}

func (s *Set) listen() (stop func(), err error) {
	states, err := s.cfg.Bus.Subscribe(subject.AllCredStates, s.hear)
	if err != nil {
		return nil, err
	}
	changes, err := s.cfg.Bus.Subscribe(subject.AllCredAccounts, s.hearForget)
	if err != nil {
		_ = states.Unsubscribe()
		return nil, err
	}
	forget := s.cfg.Bus.OnReconnect(func() { s.away.Store(true) })
	return func() {
		forget()
		_ = states.Unsubscribe() // the bus ends with the process
		_ = changes.Unsubscribe()
	}, nil
}

// catchUp makes up for what was said while the connection was away, here and elsewhere, and
// was heard by nobody: the others are asked to say it again, and this one does as well. It
// also does where another one asks. Who was away in an older version does not ask, and an
// older one that is asked finds nothing in the message.
func (s *Set) catchUp(ctx context.Context) {
	if s.cfg.Bus == nil || !s.cfg.Bus.Connected() {
		return
	}
	if s.away.Swap(false) {
		s.asked.Store(true)
		if err := s.say(ctx, &credentialv1.AccountStates{TellAll: true}); err != nil {
			s.away.Store(true)
			return
		}
	}
	if now := time.Now(); now.Sub(s.toldAll) >= tellAllEvery && s.asked.Swap(false) {
		s.toldAll = now
		for _, p := range s.all() {
			p.MarkAll(ToPeers)
		}
	}
}

// say sends the other instances a message.
func (s *Set) say(ctx context.Context, m *credentialv1.AccountStates) error {
	ctx, cancel := context.WithTimeout(ctx, tellTimeout)
	defer cancel()
	m.InstanceId = s.instance.String()
	return s.cfg.Bus.Nudge(ctx, subject.CredState(s.instance), m)
}

// tell sends what changed since it was last called. While there is no connection it is
// kept.
func (s *Set) tell(ctx context.Context) {
	if s.cfg.Bus == nil || !s.cfg.Bus.Connected() {
		return
	}
	now := time.Now()
	for o, p := range s.all() {
		if !p.Changed(ToPeers) {
			continue
		}
		for more := true; more; {
			var states []State
			states, more = p.Changes(now, ToPeers, tellBatch)
			m := &credentialv1.AccountStates{}
			for _, x := range states {
				m.Accounts = append(m.Accounts, stateMessage(o, x))
			}
			if err := s.say(ctx, m); err != nil {
				p.Mark(ToPeers, states)
				s.cfg.Log.WarnContext(ctx, "other instances not told of accounts: it is tried again", "error", err)
				return
			}
		}
	}
}

func stateMessage(o owner, x State) *credentialv1.AccountState {
	m := &credentialv1.AccountState{
		AccountId: x.Account.String(), Provider: o.provider, Environment: o.environment, CountingSince: timestamppb.New(x.Since),
		Counters: countersMessage(x.Counters), Told: countersMessage(x.Told),
	}
	if !id.IsZero(o.workspace) {
		m.WorkspaceId = o.workspace.String()
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

func countersMessage(c Counters) *credentialv1.AccountCounters {
	return &credentialv1.AccountCounters{
		TokensTaken: c.Taken, TokensReturned: c.Returned, Succeeded: c.Succeeded, RateLimited: c.Limited, Failed: c.Failed,
	}
}

func counters(m *credentialv1.AccountCounters) Counters {
	return Counters{
		Taken: m.GetTokensTaken(), Returned: m.GetTokensReturned(),
		Succeeded: m.GetSucceeded(), Limited: m.GetRateLimited(), Failed: m.GetFailed(),
	}
}

// hear takes in what another instance tells. What is not understood, or of a pool that
// nobody asked for here, is nobody's loss: the rows will say it.
func (s *Set) hear(ctx context.Context, raw *bus.Message) {
	m, err := bus.Decode[*credentialv1.AccountStates](raw)
	if err != nil {
		s.cfg.Log.WarnContext(ctx, "message of another instance not understood", "error", err)
		return
	}
	instance, err := uuid.Parse(m.GetInstanceId())
	if err != nil || instance == s.instance {
		return
	}
	if m.GetTellAll() {
		s.asked.Store(true)
	}
	now := time.Now()
	for _, a := range m.GetAccounts() {
		o := owner{provider: a.GetProvider(), environment: a.GetEnvironment()}
		if ws := a.GetWorkspaceId(); ws != "" {
			if o.workspace, err = id.Parse[id.Workspace](ws); err != nil {
				continue
			}
		}
		account, err := id.Parse[id.Account](a.GetAccountId())
		if err != nil {
			continue
		}
		s.mu.Lock()
		p := s.pools[o]
		s.mu.Unlock()
		if p != nil {
			p.Merge(now, instance, state(account, a))
		}
	}
}

func state(account id.Account, a *credentialv1.AccountState) State {
	x := State{Account: account, Since: a.GetCountingSince().AsTime(), Counters: counters(a.GetCounters()), Told: counters(a.GetTold())}
	for _, l := range a.GetLimits() {
		out := Limit{
			Family: clip(l.GetFamily(), maxTold), At: l.GetAt().AsTime(), Step: int(l.GetStep()),
			Reason: Reason(l.GetReason()), Status: int(l.GetStatus()), Raw: clip(l.GetRaw(), maxRaw),
		}
		if l.GetUntil() != nil {
			out.Until, out.Soon = l.GetUntil().AsTime(), l.GetSoon().AsTime()
		}
		x.Limits = append(x.Limits, out)
	}
	return x
}

func clip(s string, n int) string { return s[:min(len(s), n)] }

func (s *Set) tellForget(ctx context.Context, ws id.Workspace) {
	if s.cfg.Bus == nil || !s.cfg.Bus.Connected() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, tellTimeout)
	defer cancel()
	m := &credentialv1.AccountsChanged{InstanceId: s.instance.String()}
	if !id.IsZero(ws) {
		m.WorkspaceId = ws.String()
	}
	// Who does not hear it finds out at its next look.
	if err := s.cfg.Bus.Nudge(ctx, subject.CredAccounts(ws), m); err != nil {
		s.cfg.Log.DebugContext(ctx, "other instances not told of a change", "workspace", ws, "error", err)
	}
}

func (s *Set) hearForget(ctx context.Context, raw *bus.Message) {
	m, err := bus.Decode[*credentialv1.AccountsChanged](raw)
	if err != nil {
		s.cfg.Log.WarnContext(ctx, "message of another instance not understood", "error", err)
		return
	}
	if m.GetInstanceId() == s.instance.String() {
		return
	}
	var ws id.Workspace
	if text := m.GetWorkspaceId(); text != "" {
		if ws, err = id.Parse[id.Workspace](text); err != nil {
			s.cfg.Log.WarnContext(ctx, "message of another instance not understood", "error", err)
			return
		}
	}
	s.cfg.Forget(ws) // what was signed out changes no row that a look would find
	select {
	case s.lookNow <- struct{}{}:
	default: // it is going to
	}
}
