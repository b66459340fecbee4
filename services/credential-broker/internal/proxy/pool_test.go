package proxy_test

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/services/credential-broker/internal/pool"
	"signalbox.dev/services/credential-broker/internal/proxy"
	"signalbox.dev/services/credential-broker/internal/vault"
)

// orderedPool is a pool that records the order of its calls.
type orderedPool struct {
	accounts
	exhausted *pool.Exhausted // what Select returns when none is left

	mu    sync.Mutex // guards calls
	calls []string
}

func (c *orderedPool) record(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls = append(c.calls, fmt.Sprintf(format, args...))
}

func (c *orderedPool) history() string {
	c.got() // all that is to come
	c.mu.Lock()
	defer c.mu.Unlock()
	return strings.Join(c.calls, ", ")
}

func (c *orderedPool) Select(ctx context.Context, r pool.Request) (pool.Account, error) {
	a, err := c.accounts.Select(ctx, r)
	if err != nil {
		c.record("none")
		if c.exhausted != nil {
			return a, c.exhausted
		}
		return a, err
	}
	c.record("%s for %s", a.Secret.Reveal(), r.Model)
	return a, nil
}

func (c *orderedPool) Began(a pool.Account) { c.record("%s began", a.Secret.Reveal()) }

func (c *orderedPool) Report(ctx context.Context, a pool.Account, o pool.Outcome) {
	text := fmt.Sprintf("%s %s", a.Secret.Reveal(), o.Reason)
	if o.Unsent {
		text += " unsent"
	}
	if o.RetryAfter > 0 {
		text += fmt.Sprintf(" %s (%s)", o.RetryAfter, o.Raw)
	}
	c.record("%s", text)
	c.accounts.Report(ctx, a, o)
}

func newOrderedPool(t *testing.T) (*rig, *orderedPool) {
	c := &orderedPool{}
	r := newRig(t, &memory{}, func(cfg *proxy.Config) { cfg.Pool = c })
	return r, c
}

// The pool is told of a failure once, before it chooses again, and is told what the request
// asks for.
func TestPoolIsTold(t *testing.T) {
	t.Parallel()
	r, c := newOrderedPool(t)
	limited := r.serve(answer(429, `{"type":"error","error":{"type":"rate_limit_error","message":"x"}}`, "Retry-After", "7"))
	good := r.serve(stream(msgStart, msgBlock, msgStop))
	c.all = []pool.Account{r.account("anthropic", limited, "account-1"), r.account("anthropic", good, "account-2")}
	if got := r.post(messages, asking); got.status != 200 {
		t.Errorf("answer %+v, want the second account's", got)
	}
	want := "account-1 for m, account-1 RATE_LIMIT_EXCEEDED 7s (retry-after: 7), account-2 for m, account-2 began, account-2 OK"
	if diff := cmp.Diff(want, c.history()); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
}

// A ping that the caller sees when the gate's time is up says nothing good about the account:
// its limits stay as they were.
func TestPingIsNotABeginning(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ last, want string }{
		"a failure": {"event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"billing_error\",\"message\":\"x\"}}\n\n", "account-1 QUOTA_EXHAUSTED"},
		"an answer": {msgStart + msgBlock + msgStop, "account-1 began, account-1 OK"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				r, c := newOrderedPool(t)
				c.all = []pool.Account{r.account("anthropic", r.serve(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
					for range 2 { // meanwhile the gate opens
						stream(msgPing)(w, req)
						<-time.After(15 * time.Second)
					}
					_, _ = io.WriteString(w, tt.last)
				})), "account-1")}
				if got := r.post(messages, asking); got.status != 200 || !strings.HasPrefix(got.body, msgPing) {
					t.Errorf("answer %+v, want a stream that begins with a ping", got)
				}
				if diff := cmp.Diff("account-1 for m, "+tt.want, c.history()); diff != "" {
					t.Errorf("calls (-want +got):\n%s", diff)
				}
			})
		})
	}
}

// An event that is shown before it is whole counts as a beginning: the account's use is
// recorded.
func TestOverlongBeginning(t *testing.T) {
	t.Parallel()
	r, c := newOrderedPool(t)
	long := "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"x\":\"" + strings.Repeat("x", 3<<20)
	c.all = []pool.Account{r.account("anthropic", r.serve(stream(long)), "account-1")}
	if got := r.post(messages, asking); got.status != 200 || got.err == nil {
		t.Errorf("answer %d, %v, want one that breaks off", got.status, got.err)
	}
	if diff := cmp.Diff("account-1 for m, account-1 began, account-1 UNREACHABLE", c.history()); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
}

func TestUnsentIsReported(t *testing.T) {
	t.Parallel()
	r, c := newOrderedPool(t)
	c.all = []pool.Account{r.account("anthropic", "http://nobody.test", "account-1")}
	if got := r.post(messages, asking); got.status != 502 {
		t.Errorf("answer %+v, want 502", got)
	}
	if diff := cmp.Diff("account-1 for m, account-1 UNREACHABLE unsent", c.history()); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
}

// A request that cannot be edited for the account's profile is refused before anything is sent,
// and costs the account no token.
func TestRefusedEditIsUnsent(t *testing.T) {
	t.Parallel()
	r, c := newOrderedPool(t)
	c.all = []pool.Account{r.profiled("anthropic-oauth", "", "http://nobody.test", "account-1")}
	body := `{"model":"m","tools":[` + strings.Repeat(`{"name":"t"},`, 70_000) + `{"name":"t"}],"messages":[]}`
	if got := r.post(messages, body); got.status != 400 || !strings.Contains(got.body, "more tools") {
		t.Errorf("answer %d %.200s, want a refusal that says why", got.status, got.body)
	}
	if diff := cmp.Diff("account-1 for m, account-1 CALLER unsent", c.history()); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
}

// A caller that waits as long as Retry-After says is not refused again for a fraction of a
// second.
func TestRetryAfterIsRoundedUp(t *testing.T) {
	t.Parallel()
	r, c := newOrderedPool(t)
	c.all, c.err = []pool.Account{{}}, pool.ErrExhausted
	for range 3 {
		back := time.Now().Add(90*time.Second + 300*time.Millisecond)
		c.exhausted = &pool.Exhausted{Back: back, Reason: pool.RateLimited, Members: 2}
		got := r.post(messages, asking)
		wait, err := strconv.Atoi(got.header.Get("Retry-After"))
		if left := time.Until(back); err != nil || time.Duration(wait)*time.Second < left || wait > 91 {
			t.Errorf("Retry-After: %s, with %v left", got.header.Get("Retry-After"), left)
		}
	}
}

// An SDK is told not to sleep through a long wait.
func TestLongWait(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		wait   time.Duration
		header string // that holds the token
		retry  string
	}{
		{50 * time.Second, "X-Api-Key", ""},
		{time.Hour, "X-Api-Key", "false"},
		{time.Hour, identity.Header, ""},
	} {
		r, c := newOrderedPool(t)
		c.all, c.err = []pool.Account{{}}, pool.ErrExhausted
		c.exhausted = &pool.Exhausted{Back: time.Now().Add(tt.wait), Reason: pool.RateLimited, Members: 2}
		req := r.request(t.Context(), messages, asking)
		req.Header.Del("X-Api-Key")
		req.Header.Set(tt.header, r.token())
		got := r.do(req)
		wait, err := strconv.Atoi(got.header.Get("Retry-After"))
		if got.status != 429 || err != nil || time.Duration(wait)*time.Second < tt.wait-10*time.Second || got.header.Get("X-Should-Retry") != tt.retry {
			t.Errorf("%v, token in %s: got %d %v, want X-Should-Retry %q", tt.wait, tt.header, got.status, got.header, tt.retry)
		}
	}
}

// When no account is left, the answer says when one is ready, in the provider's shape; a pool's
// only account answers for itself.
func TestExhausted(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name    string
		e       pool.Exhausted
		tried   bool
		status  int
		message string
	}{
		{"all parked", pool.Exhausted{Reason: pool.RateLimited, Members: 3}, false, 429, "all 3 accounts for the provider anthropic are at their rate limit"},
		{"the others parked", pool.Exhausted{Reason: pool.QuotaExhausted, Members: 3}, true, 429, "all 3 accounts for the provider anthropic are out of quota"},
		{"keys refused", pool.Exhausted{Reason: pool.AuthFailed, Members: 2}, true, 503, "paused because the provider refused them"},
		{"alone and parked", pool.Exhausted{Reason: pool.AuthFailed, Members: 1}, false, 503, "the account for the provider anthropic is paused because the provider refused it"},
		{"alone and tried", pool.Exhausted{Reason: pool.RateLimited, Members: 1}, true, 429, "its own words"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r, c := newOrderedPool(t)
			tt.e.Back = time.Now().Add(42 * time.Second)
			c.exhausted = &tt.e
			base := r.serve(answer(429, `{"type":"error","error":{"type":"rate_limit_error","message":"its own words"}}`, "Retry-After", "42"))
			c.all = []pool.Account{r.account("anthropic", base, "account-1")}
			if !tt.tried {
				c.err = pool.ErrExhausted
			}
			got := r.post(messages, asking)
			if wait := got.header.Get("Retry-After"); got.status != tt.status || wait != "42" && wait != "41" || !strings.Contains(got.body, tt.message) || !strings.HasPrefix(got.body, `{"type":"error","error":{"type":`) {
				t.Errorf("answer %d, Retry-After %s, %s; want %d, 42, %q", got.status, wait, got.body, tt.status, tt.message)
			}
			if retry := got.header.Get("X-Should-Retry"); retry != "" {
				t.Errorf("X-Should-Retry is %q: it would help", retry)
			}
		})
	}
}

// The 429 of a pool's only account says when to try again even if the provider does not; what
// the provider says stays.
func TestOnlyAccountGetsRetryAfter(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		status int
		header []string
		want   string
	}{
		{429, nil, "42"}, {429, []string{"Retry-After", "7"}, "7"}, {429, []string{"Retry-After-Ms", "7000"}, ""}, {403, nil, ""},
	} {
		r, c := newOrderedPool(t)
		base := r.serve(answer(tt.status, `{"type":"error","error":{"type":"rate_limit_error","message":"x"}}`, tt.header...))
		c.all = []pool.Account{r.account("anthropic", base, "account-1")}
		c.exhausted = &pool.Exhausted{Back: time.Now().Add(41*time.Second + 500*time.Millisecond), Reason: pool.RateLimited, Members: 1}
		if got := r.post(messages, asking); got.status != tt.status || got.header.Get("Retry-After") != tt.want {
			t.Errorf("%d with %v: got %d, Retry-After %q, want %q", tt.status, tt.header, got.status, got.header.Get("Retry-After"), tt.want)
		}
	}
}

// Whatever accounts answer, each is tried once and reported on once before the next is chosen,
// and none is chosen after an answer has begun.
func TestAccountsAtRandom(t *testing.T) {
	t.Parallel()
	r, c := newOrderedPool(t)
	all := map[string]pool.Account{"away": r.account("anthropic", "http://nobody.test", "")}
	for name, h := range map[string]http.HandlerFunc{
		"limited":    answer(429, `{"type":"error","error":{"type":"rate_limit_error","message":"x"}}`),
		"refused":    answer(401, `{"type":"error","error":{"type":"authentication_error","message":"x"}}`),
		"quota":      answer(403, `{"type":"error","error":{"type":"permission_error","message":"x"}}`),
		"service":    answer(529, `{"type":"error","error":{"type":"overloaded_error","message":"x"}}`),
		"caller":     answer(400, `{"type":"error","error":{"type":"invalid_request_error","message":"x"}}`),
		"overloaded": stream(msgStart, msgError),
		"good":       stream(msgStart, msgBlock, msgDelta, msgStop),
		"midway":     stream(msgStart, msgBlock, msgError),
		"cut": func(w http.ResponseWriter, q *http.Request) {
			stream(msgStart, msgBlock, msgDelta)(w, q)
			cut()
		},
		"nothing": func(http.ResponseWriter, *http.Request) { cut() },
	} {
		all[name] = r.account("anthropic", r.serve(h), "")
	}
	names := []string{"limited", "refused", "quota", "service", "caller", "overloaded", "good", "midway", "cut", "nothing", "away", "limited", "overloaded"}
	rnd := rand.New(rand.NewPCG(1, 7))
	for n := range 500 {
		*c = orderedPool{}
		var kinds []string
		for i := range 1 + rnd.IntN(5) {
			kind := names[rnd.IntN(len(names))]
			kinds = append(kinds, kind)
			a := all[kind]
			a.ID, a.Secret = id.New[id.Account](), vault.NewSecret(fmt.Sprintf("account-%d", i))
			c.all = append(c.all, a)
		}
		c.exhausted = &pool.Exhausted{Back: time.Now(), Reason: pool.RateLimited, Members: len(kinds)}
		got := r.post(messages, asking)
		if err := checkOrder(c.history()); err != nil {
			t.Fatalf("request %d with %v, answered with %d: %v:\n%s", n, kinds, got.status, err, c.history())
		}
	}
}

// checkOrder checks the order of calls of one request.
func checkOrder(calls string) error {
	chosen, open, began := map[string]bool{}, "", false
	for call := range strings.SplitSeq(calls, ", ") {
		account, what, _ := strings.Cut(call, " ")
		switch {
		case call == "none":
			if open != "" {
				return fmt.Errorf("asked again before %s was reported on", open)
			}
		case strings.HasPrefix(what, "for "):
			if began || open != "" || chosen[account] {
				return fmt.Errorf("%s is chosen", account)
			}
			open, chosen[account] = account, true
		case what == "began":
			if began || account != open {
				return fmt.Errorf("%s began", account)
			}
			began = true
		default:
			if account != open {
				return fmt.Errorf("%s is reported on", account)
			}
			open = ""
		}
	}
	if open != "" {
		return fmt.Errorf("%s is not reported on", open)
	}
	return nil
}

var _ proxy.Pool = (*orderedPool)(nil)
