package main

import (
	"cmp"
	"context"
	"encoding/json"
	"time"

	"signalbox.dev/pkg/fault"
	toolv1 "signalbox.dev/proto/signalbox/tool/v1"
	"signalbox.dev/services/e2e/farend"
	toolexecutor "signalbox.dev/services/tool-executor"
)

// settle is for test_verify: a request that an executor sent before it was killed takes effect
// within this time, unless the far end has a longer latency.
const settle = 1500 * time.Millisecond

const schema = `{
	"type": "object",
	"properties": {
		"note": {"type": "string", "maxLength": 1000},
		"before_ms": {"type": "integer", "minimum": 0, "maximum": 60000},
		"after_ms": {"type": "integer", "minimum": 0, "maximum": 60000}
	},
	"additionalProperties": false
}`

// tools returns test_pure, test_keyed, test_verify and test_unsafe, and test_asked_keyed,
// test_asked_verify and test_asked_unsafe, which a person has to approve; the fifth effect,
// same_tx, is that of the document tools. The far end counts by the argument note, or by the
// call's key if there is none.
func tools(far *farend.Client) []toolexecutor.Tool {
	all := []toolexecutor.Tool{&tool{
		name: "test_pure", does: "no effect", effect: toolv1.Effect_EFFECT_PURE,
		act: func(ctx context.Context, operation, _ string, _ farend.Latency) (farend.Effect, error) {
			return far.Read(ctx, operation)
		},
	}}
	for _, asks := range []bool{false, true} {
		prefix := "test_"
		if asks {
			prefix = "test_asked_"
		}
		all = append(all,
			&tool{
				name: prefix + "keyed", does: "an effect that happens once for each key", effect: toolv1.Effect_EFFECT_KEYED, asks: asks, act: far.Keyed,
			},
			&verified{tool{
				name: prefix + "verify", does: "an effect that can be looked up", effect: toolv1.Effect_EFFECT_VERIFY, asks: asks, act: far.Marked,
			}, far},
			&tool{
				name: prefix + "unsafe", does: "an effect that cannot be looked up", effect: toolv1.Effect_EFFECT_UNSAFE, asks: asks,
				act: func(ctx context.Context, operation, _ string, l farend.Latency) (farend.Effect, error) {
					return far.Blind(ctx, operation, l)
				},
			})
	}
	return all
}

// tool is a request to the far end.
type tool struct {
	name, does string
	effect     toolv1.Effect
	asks       bool // a person has to approve it
	act        func(ctx context.Context, operation, key string, l farend.Latency) (farend.Effect, error)
}

// Spec implements toolexecutor.Tool.
func (t *tool) Spec() toolexecutor.Spec {
	return toolexecutor.Spec{
		Name: t.name, Description: "For tests: " + t.does + ".", Guidance: "Only for tests.", InputSchema: json.RawMessage(schema),
		Effect: t.effect, Settle: settle, NeedsApproval: t.asks,
	}
}

// Available implements toolexecutor.Tool.
func (t *tool) Available(context.Context) toolexecutor.Availability {
	return toolexecutor.Availability{Available: true}
}

// Run implements toolexecutor.Tool.
func (t *tool) Run(ctx context.Context, c toolexecutor.Call) (toolexecutor.Result, error) {
	var args struct {
		Note string `json:"note"`
		farend.Latency
	}
	if err := json.Unmarshal(c.Args, &args); err != nil {
		return toolexecutor.Result{}, err
	}
	key := c.Key.String()
	e, err := t.act(ctx, cmp.Or(args.Note, key), key, args.Latency)
	if err != nil {
		return toolexecutor.Result{}, away(err)
	}
	return toolexecutor.Object(e), nil
}

func away(err error) error { return fault.Wrap(err, fault.Unavailable, "the far end did not answer") }

// verified is a tool whose effect can be looked up at the far end.
type verified struct {
	tool
	far *farend.Client
}

// Verify implements toolexecutor.Verifier.
func (v *verified) Verify(ctx context.Context, c toolexecutor.Call) (toolexecutor.Result, bool, error) {
	e, found, err := v.far.Find(ctx, c.Key.String())
	if err != nil {
		return toolexecutor.Result{}, false, away(err)
	}
	return toolexecutor.Object(e), found, nil
}
