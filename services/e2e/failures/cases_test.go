package failures_test

import (
	"strings"
	"time"
)

// The answer of every script, and what of it comes before most failures.
const (
	whole = "One two three four five."
	begun = `{say: 'One two '}`
	rest  = `{say: 'three four five.'}`
)

// Reasons, as operators read them.
const (
	rateLimited = "RATE_LIMIT_EXCEEDED"
	authFailed  = "AUTH_FAILED"
	quota       = "QUOTA_EXHAUSTED"
	overloaded  = "OVERLOADED"
	service     = "SERVICE"
	unreachable = "UNREACHABLE"
	good        = "OK"
)

// tries is how often the runner calls a model.
const tries = 3

// failure is one way in which a provider fails, and what the table of errors makes of it.
type failure struct {
	name string
	// then is how the provider of the first account answers, as a script's actions;
	// openai says it for that dialect where it differs. In place of § comes how often.
	then, openai string
	// base is the account's base URL where that is not the simulator's.
	base func(*rig) string
	// signedIn is for an account with an access token that can be renewed.
	signedIn bool
	lasts    bool // it cannot happen once only

	// Where nobody else can be asked: the run's error, empty for none; how often the
	// provider is asked, and how often what was shown of it is taken back.
	code         string
	asked, shown int
	final        bool // the runner does not try again

	// As which failure it counts for the account; switches says that another account is
	// tried; parked is for how long this one is not.
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
			name: "connect refused", then: first(`{wait: 0s}`), base: func(*rig) string { return nobody }, lasts: true,
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
			// The broker says how long it holds the account back, and the runner waits for that.
			name: "429 without Retry-After", then: first(`{fail: {kind: rate_limit§}}`),
			code: "MODEL_RATE_LIMIT", asked: tries, reason: rateLimited, switches: true, parked: 30 * time.Second,
		},
		{name: "500", then: first(`{fail: {kind: server_error§}}`), code: "MODEL_SERVER", asked: tries, reason: service},
		{name: "503", then: first(`{fail: {kind: server_error, status: 503§}}`), code: "MODEL_OVERLOADED", asked: tries, reason: service},
		{name: "529", then: first(`{fail: {kind: overloaded, status: 529§}}`), code: "MODEL_OVERLOADED", asked: tries, reason: service},
		{
			// The token is renewed once, which costs nothing, and then refused again.
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
			// The account has done its work: what it sent came through as it was.
			name: "malformed JSON", then: midway(`{event: {name: content_block_delta, data: '{"type":"content_block_delta","choices":[{'}}`), lasts: true,
			code: "MODEL_SERVER", asked: tries, shown: tries - 1, reason: good,
		},
		{
			// Slower as a whole than any patience, and never silent for long.
			name: "slow trickle", then: `[{say: {text: '` + whole + `', chunk: 1, delay: 200ms}}]`, lasts: true,
			asked: 1, reason: good,
		},
	}
}

// setting is who meets a failure.
type setting string

const (
	alone  setting = "alone"  // the only account, for ever
	two    setting = "two"    // the first of two accounts, for ever; the second is well
	passes setting = "passes" // the only account, once
)

// want is what a failure comes to in a setting.
type want struct {
	code      string
	asked     map[string]int // by account
	shown     int
	stats     map[string]map[string]int64 // by account, then by reason
	parked    time.Duration               // of the first account
	refreshed bool                        // its token was
}

func (f *failure) want(s setting) want {
	reports := int64(f.asked) // how many of the requests count
	switch {
	case f.base != nil:
		reports = tries + 1 // also for the models that it lists
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
	case s == passes && f.signedIn: // the 401 counts for nothing
		w.code, w.parked, w.stats = "", 0, map[string]map[string]int64{firstAccount: {good: 1}}
	case s == passes && !f.final:
		w.code, asked, w.shown, w.parked = "", 2, min(f.shown, 1), 0
		w.stats = map[string]map[string]int64{firstAccount: {f.reason: 1, good: 1}}
	}
	switch {
	case f.base == nil: // it has listed its models
		w.stats[firstAccount][good]++
	case s == two: // the server that cannot be reached is left at once, for a minute
		w.code, w.parked, w.asked = "", time.Minute, map[string]int{secondAccount: 1}
		w.stats = map[string]map[string]int64{firstAccount: {f.reason: 1}, secondAccount: {good: 2}}
	}
	if asked > 0 {
		w.asked[firstAccount] = asked
	}
	return w
}

// settings are those in which a failure can be met.
func (f *failure) settings() []setting {
	if f.lasts {
		return []setting{alone, two}
	}
	return []setting{alone, two, passes}
}

// script is what the provider plays for a failure.
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

// Accounts by their labels, with which their keys begin.
const (
	firstAccount  = "first"
	secondAccount = "second"
)
