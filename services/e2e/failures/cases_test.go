package failures_test

import (
	"strings"
	"time"
)

// The complete answer of every script, and the parts before and after most failures.
const (
	whole = "One two three four five."
	begun = `{say: 'One two '}`
	rest  = `{say: 'three four five.'}`
)

// Reasons, as operators see them.
const (
	rateLimited = "RATE_LIMIT_EXCEEDED"
	authFailed  = "AUTH_FAILED"
	quota       = "QUOTA_EXHAUSTED"
	overloaded  = "OVERLOADED"
	service     = "SERVICE"
	unreachable = "UNREACHABLE"
	good        = "OK"
)

// tries is the number of the runner's attempts to call a model.
const tries = 3

// failure is one way in which a provider fails, with the expected reactions.
type failure struct {
	name string
	// then is the answer of the first account's provider, as a script's actions; openai is the
	// one for that dialect if it differs. § stands for the number of times.
	then, openai string
	// base returns the account's base URL if it is not the simulator's.
	base func(*rig) string
	// signedIn means that the account has a renewable access token.
	signedIn bool
	lasts    bool // it cannot happen only once

	// With no other account: the run's error code, empty for none; the number of requests to
	// the provider, and the number of retractions.
	code         string
	asked, shown int
	final        bool // the runner does not retry

	// The counted reason; whether another account is tried; and how long this one is parked.
	reason   string
	switches bool
	parked   time.Duration
}

// A failure before the answer, and in the middle of it.
func first(fault string) string  { return "[" + fault + ", " + begun + ", " + rest + "]" }
func midway(fault string) string { return "[" + begun + ", " + fault + ", " + rest + "]" }

func failures() []failure {
	return []failure{
		{
			name: "connect refused", then: first(`{wait: 0s}`), base: func(*rig) string { return noServer }, lasts: true,
			code: "MODEL_NETWORK", reason: unreachable,
		},
		{
			name: "TLS failure", then: first(`{wait: 0s}`), base: func(r *rig) string { return r.untrusted }, lasts: true,
			code: "MODEL_NETWORK", reason: unreachable,
		},
		{
			name: "hang before the headers", then: first(`{fail: {kind: stall§}}`),
			code: "MODEL_TIMEOUT", asked: tries, reason: unreachable,
		},
		{
			name: "hang before the first event", then: first(`{fail: {kind: stall, in_stream: true§}}`),
			code: "MODEL_TIMEOUT", asked: tries, reason: unreachable,
		},
		{
			name: "stall midway", then: midway(`{fail: {kind: stall§}}`),
			code: "MODEL_TIMEOUT", asked: tries, shown: tries - 1, reason: unreachable,
		},
		{
			name: "reset midway", then: midway(`{fail: {kind: reset§}}`),
			code: "MODEL_NETWORK", asked: tries, shown: tries - 1, reason: unreachable,
		},
		{
			name: "clean cut", then: midway(`{fail: {kind: cut§}}`),
			code: "MODEL_TRUNCATED", asked: tries, shown: tries - 1, reason: unreachable,
		},
		{
			name: "429 with Retry-After", then: first(`{fail: {kind: rate_limit, retry_after: '2'§}}`),
			code: "MODEL_RATE_LIMIT", asked: tries, reason: rateLimited, switches: true, parked: 2 * time.Second,
		},
		{
			// The broker says how long the account is parked, and the runner waits for that.
			name: "429 without Retry-After", then: first(`{fail: {kind: rate_limit§}}`),
			code: "MODEL_RATE_LIMIT", asked: tries, reason: rateLimited, switches: true, parked: 30 * time.Second,
		},
		{name: "500", then: first(`{fail: {kind: server_error§}}`), code: "MODEL_SERVER", asked: tries, reason: service},
		{name: "503", then: first(`{fail: {kind: server_error, status: 503§}}`), code: "MODEL_OVERLOADED", asked: tries, reason: service},
		{name: "529", then: first(`{fail: {kind: overloaded, status: 529§}}`), code: "MODEL_OVERLOADED", asked: tries, reason: service},
		{
			// The token is renewed once, which is not counted, and then refused again.
			name: "401 of a token", then: first(`{fail: {kind: unauthorized§}}`), signedIn: true,
			code: "MODEL_AUTH", asked: 2, reason: authFailed, switches: true, parked: 5 * time.Second, final: true,
		},
		{
			name: "401 of a key", then: first(`{fail: {kind: unauthorized§}}`),
			code: "MODEL_AUTH", asked: 1, reason: authFailed, switches: true, parked: 5 * time.Second, final: true,
		},
		{
			name: "400 for the quota", then: first(`{fail: {kind: no_credit§}}`),
			openai: first(`{fail: {kind: invalid, type: insufficient_quota, code: insufficient_quota§}}`),
			code:   "MODEL_QUOTA", asked: 1, reason: quota, switches: true, parked: time.Minute, final: true,
		},
		{
			name: "403 for the quota", then: first(`{fail: {kind: forbidden, type: billing_error, code: billing_hard_limit_reached§}}`),
			code: "MODEL_QUOTA", asked: 1, reason: quota, switches: true, parked: time.Minute, final: true,
		},
		{
			name: "overload inside a 200", then: first(`{fail: {kind: overloaded, in_stream: true§}}`),
			openai: first(`{fail: {kind: overloaded, in_stream: true, code: overloaded§}}`),
			code:   "MODEL_OVERLOADED", asked: tries, reason: overloaded, switches: true,
		},
		{
			// The account is not at fault: its answer was passed on unchanged.
			name: "malformed JSON", then: midway(`{event: {name: content_block_delta, data: '{"type":"content_block_delta","choices":[{'}}`), lasts: true,
			code: "MODEL_SERVER", asked: tries, shown: tries - 1, reason: good,
		},
		{
			// Longer in total than any timeout, and never silent for long.
			name: "slow trickle", then: `[{say: {text: '` + whole + `', chunk: 1, delay: 200ms}}]`, lasts: true,
			asked: 1, reason: good,
		},
	}
}

// setting is the accounts that a failure affects.
type setting string

const (
	alone  setting = "alone"  // the only account, permanently
	two    setting = "two"    // the first of two accounts, permanently; the second one works
	passes setting = "passes" // the only account, once
)

// want is the expected result of a failure in a setting.
type want struct {
	code      string
	asked     map[string]int // by account
	shown     int
	stats     map[string]map[string]int64 // by account, then by reason
	parked    time.Duration               // of the first account
	refreshed bool                        // its token was renewed
}

func (f *failure) want(s setting) want {
	reports := int64(f.asked) // the number of counted requests
	switch {
	case f.base != nil:
		reports = tries + 1 // one for the list of models
	case f.signedIn:
		reports = 1
	}
	w := want{
		code: f.code, asked: map[string]int{}, shown: f.shown, parked: f.parked, refreshed: f.signedIn,
		stats: map[string]map[string]int64{firstAccount: {f.reason: reports}},
	}
	asked := f.asked
	switch {
	case s == two && f.switches:
		w.code, w.shown = "", 0
		if asked = 1; f.signedIn {
			asked = 2
		}
		w.asked[secondAccount] = 1
		w.stats = map[string]map[string]int64{firstAccount: {f.reason: 1}, secondAccount: {good: 1}}
	case s == passes && f.signedIn: // the 401 is not counted
		w.code, w.parked, w.stats = "", 0, map[string]map[string]int64{firstAccount: {good: 1}}
	case s == passes && !f.final:
		w.code, asked, w.shown, w.parked = "", 2, min(f.shown, 1), 0
		w.stats = map[string]map[string]int64{firstAccount: {f.reason: 1, good: 1}}
	}
	switch {
	case f.base == nil: // it has listed its models
		w.stats[firstAccount][good]++
	case s == two: // an unreachable server parks the account at once, for a minute
		w.code, w.parked, w.asked = "", time.Minute, map[string]int{secondAccount: 1}
		w.stats = map[string]map[string]int64{firstAccount: {f.reason: 1}, secondAccount: {good: 2}}
	}
	if asked > 0 {
		w.asked[firstAccount] = asked
	}
	return w
}

// settings returns the settings that a failure can have.
func (f *failure) settings() []setting {
	if f.lasts {
		return []setting{alone, two}
	}
	return []setting{alone, two, passes}
}

// script returns the provider's script for a failure.
func (f *failure) script(dialect string, s setting) string {
	then, often := f.then, ""
	if dialect == "openai" && f.openai != "" {
		then = f.openai
	}
	if s == passes {
		often = ", times: 1"
	}
	return "rules:\n" +
		"  - {name: " + secondAccount + ", when: {key: '^" + secondAccount + "-'}, then: [" + begun + ", " + rest + "]}\n" +
		"  - {name: " + firstAccount + ", then: " + strings.ReplaceAll(then, "§", often) + "}\n"
}

// The accounts' labels, with which their keys begin.
const (
	firstAccount  = "first"
	secondAccount = "second"
)
