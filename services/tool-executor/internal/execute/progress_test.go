package execute_test

import (
	"context"
	"encoding/json"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"signalbox.dev/pkg/id"
	toolv1 "signalbox.dev/proto/signalbox/tool/v1"
	"signalbox.dev/services/tool-executor/internal/execute"
	"signalbox.dev/services/tool-executor/internal/ledger"
	"signalbox.dev/services/tool-executor/internal/tool"
)

// reporting is a tool that reports progress each time that a pause is over, and answers after the
// last one.
type reporting []time.Duration

func (reporting) Spec() tool.Spec {
	return tool.Spec{
		Name: "reporting", Description: "Reports.", InputSchema: json.RawMessage(`{"type":"object"}`), Effect: pure,
		Deadline: time.Minute, Longest: 10 * time.Minute,
	}
}

func (reporting) Available(context.Context) tool.Availability {
	return tool.Availability{Available: true}
}

func (r reporting) Run(ctx context.Context, c tool.Call) (tool.Result, error) {
	for _, pause := range r {
		select {
		case <-time.After(pause):
			c.Report(tool.Progress{Message: strings.Repeat("é", 300), Percent: 120})
		case <-ctx.Done():
			return tool.Result{}, context.Cause(ctx)
		}
	}
	return tool.Object("ready"), nil
}

// oneCall is a ledger without a database, which virtual time cannot wait for.
type oneCall struct {
	execute.Ledger

	outcome *toolv1.Outcome
}

func (*oneCall) Claim(context.Context, ledger.Call) (ledger.Claim, error) {
	return ledger.Claim{Attempt: 1, Effect: pure}, nil
}

func (m *oneCall) Record(_ context.Context, _ id.Workspace, _ int, o *toolv1.Outcome, _ id.Member) error {
	m.outcome = o
	return nil
}

// TestProgress runs calls in virtual time: each report gives a call another deadline, up to the
// longest time, and viewers get one report a second at most.
func TestProgress(t *testing.T) {
	t.Parallel()
	repeat := func(n int, d time.Duration) (all reporting) {
		for range n {
			all = append(all, d)
		}
		return all
	}
	for _, tt := range []struct {
		name      string
		tool      reporting
		took      time.Duration
		errorType string
		reports   int
	}{
		{"reports in time", repeat(5, 50*time.Second), 250 * time.Second, "", 5},
		{"is silent", reporting{50 * time.Second, 2 * time.Minute}, 110 * time.Second, "timeout", 1},
		{"never says anything", reporting{2 * time.Minute}, time.Minute, "timeout", 0},
		{"never ends", repeat(100, 31*time.Second), 10 * time.Minute, "timeout", 19},
		{"reports very often", repeat(100, 100*time.Millisecond), 10 * time.Second, "", 10},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				catalogue, err := tool.NewCatalogue(tt.tool)
				if err != nil {
					t.Fatal(err)
				}
				metrics, err := execute.NewMetrics(nil)
				if err != nil {
					t.Fatal(err)
				}
				var reports []*toolv1.Progress
				book := &oneCall{}
				e := execute.New(execute.Config{
					Catalogue: catalogue, Ledger: book, Announce: func(context.Context, *toolv1.Outcome) {}, Log: slog.New(slog.DiscardHandler), Metrics: metrics,
					Report: func(_ context.Context, p *toolv1.Progress) { reports = append(reports, p) },
					Slots:  1, PerWorkspace: 1, Waiting: 1, Wait: time.Second, Quiet: time.Hour, Grace: time.Second, RecordFor: time.Second,
				})
				c := (&world{ws: id.New[id.Workspace](), run: id.New[id.Run]()}).call("reporting", `{}`)
				c.Deadline = timestamppb.New(time.Now().Add(time.Hour))
				start := time.Now()
				if err := e.Handle(t.Context(), c); err != nil {
					t.Fatal(err)
				}
				if took := time.Since(start); took != tt.took || book.outcome.GetErrorType() != tt.errorType {
					t.Errorf("ends after %v with %q, want %v, %q", took, book.outcome.GetErrorType(), tt.took, tt.errorType)
				}
				if len(reports) != tt.reports {
					t.Fatalf("%d reports, want %d", len(reports), tt.reports)
				}
				for _, p := range reports {
					if p.GetKey() != c.GetKey() || p.GetRunId() != c.GetRunId() || p.GetPercent() != 100 || p.GetMessage() != strings.Repeat("é", 200)+"…" {
						t.Errorf("report %v", p)
					}
				}
			})
		})
	}
}
