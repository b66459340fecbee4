package monitoring

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Query is an expression of the dashboard.
type Query struct{ Panel, Expr string }

// Queries returns the expressions of the dashboard in a checkout, with a rate interval for samples
// of each second, and for every namespace and release.
func Queries(checkout string) ([]Query, error) {
	text, err := os.ReadFile(filepath.Join(checkout, "deploy/grafana/signalbox.json"))
	if err != nil {
		return nil, err
	}
	var dashboard struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal(text, &dashboard); err != nil {
		return nil, fmt.Errorf("dashboard: %w", err)
	}
	var all []Query
	for _, p := range dashboard.Panels {
		for _, t := range p.Targets {
			all = append(all, Query{p.Title, strings.NewReplacer("$__rate_interval", "30s", "$namespace", ".*", "$release", ".*").Replace(t.Expr)})
		}
	}
	if len(all) == 0 {
		return nil, errors.New("dashboard: it has no queries")
	}
	return all, nil
}

// quiet has the dashboard's expressions that have no value while nothing is wrong, by a part of
// them, and what gives them one.
var quiet = map[string]string{
	"signalbox_queue_oldest_seconds":                 "a run waits for a runner",
	"signalbox_budget_used_ratio":                    "half of a budget is used",
	`signalbox_run_claims_total{left!="done"`:        "a runner lost a run to another one",
	"signalbox_tool_calls_taken_over_total":          "an executor died",
	`signalbox_broker_requests_total{outcome!="ok"`:  "a model call failed",
	"signalbox_broker_account_cooldowns_total":       "an account was parked",
	`signalbox_bus_deliveries_total{decision!="ack"`: "a handler failed",
}

// Quiet returns what gives the query a value if it has none while nothing is wrong, or "".
func (q Query) Quiet() string {
	for part, cause := range quiet {
		if strings.Contains(q.Expr, part) {
			return cause
		}
	}
	return ""
}

// Await waits until each query that is not quiet has had a value. When ctx is done, the error lists
// those that had none.
func (a API) Await(ctx context.Context, queries []Query) error {
	missing := slices.DeleteFunc(slices.Clone(queries), func(q Query) bool { return q.Quiet() != "" })
	for {
		var failed error
		missing = slices.DeleteFunc(missing, func(q Query) bool {
			found, err := a.Now(ctx, q.Expr)
			if err != nil && ctx.Err() == nil {
				failed = fmt.Errorf("panel %q: %w", q.Panel, err)
			}
			return len(found) > 0
		})
		if failed != nil || len(missing) == 0 {
			return failed
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%d queries have no value: %q", len(missing), missing)
		case <-time.After(500 * time.Millisecond):
		}
	}
}

// speed divides the durations in rules.
const speed = 40

var (
	durations = regexp.MustCompile(`(\[|\bfor: |\boffset )(\d+)([smhd])\b`)
	alertName = regexp.MustCompile(`(?m)^ +- alert: (\w+)$`)
	units     = map[string]time.Duration{"s": time.Second, "m": time.Minute, "h": time.Hour, "d": 24 * time.Hour}
)

// Rules returns the alerts of a checkout, and their names. Each duration in them (for:, offset and
// ranges) is divided by 40: a minute becomes 1.5 seconds. Limits such as "> 60" stay.
func Rules(checkout string) (rules []byte, names []string, err error) {
	text, err := os.ReadFile(filepath.Join(checkout, "deploy/prometheus/alerts.yaml"))
	if err != nil {
		return nil, nil, err
	}
	for _, m := range alertName.FindAllSubmatch(text, -1) {
		names = append(names, string(m[1]))
	}
	if len(names) == 0 {
		return nil, nil, errors.New("alerts.yaml: it has no alerts")
	}
	return durations.ReplaceAllFunc(text, func(found []byte) []byte {
		m := durations.FindSubmatch(found)
		n, _ := strconv.Atoi(string(m[2])) // digits
		short := time.Duration(n) * units[string(m[3])] / speed
		return fmt.Appendf(nil, "%s%dms", m[1], short.Milliseconds())
	}), names, nil
}
