package monitoring

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"time"
)

// API is the API of a Prometheus.
type API struct {
	URL  string
	HTTP *http.Client
}

// Now returns the labels of the series that an expression has now. Series that are no numbers do not
// count: a quantile of nothing is one.
func (a API) Now(ctx context.Context, expr string) ([]map[string]string, error) {
	return a.series(ctx, "/api/v1/query", url.Values{"query": {expr}})
}

// Since returns the labels of all series that an expression has had at some second, like Now.
func (a API) Since(ctx context.Context, expr string, from time.Time) ([]map[string]string, error) {
	return a.series(ctx, "/api/v1/query_range", url.Values{
		"query": {expr}, "start": {from.Format(time.RFC3339)}, "end": {time.Now().Format(time.RFC3339)}, "step": {"1"},
	})
}

func (a API) series(ctx context.Context, path string, form url.Values) ([]map[string]string, error) {
	type point []any // the time, and the value as text
	var data struct {
		Result []struct {
			Metric map[string]string
			Value  point
			Values []point
		}
	}
	if err := a.get(ctx, path+"?"+form.Encode(), &data); err != nil {
		return nil, fmt.Errorf("%s: %w", form.Get("query"), err)
	}
	var all []map[string]string
	for _, r := range data.Result {
		isNumber := func(p point) bool { return len(p) == 2 && p[1] != "NaN" }
		if isNumber(r.Value) || slices.ContainsFunc(r.Values, isNumber) {
			all = append(all, r.Metric)
		}
	}
	return all, nil
}

// Firing returns the names of the alerts that fire, with their summaries.
func (a API) Firing(ctx context.Context) (map[string]string, error) {
	var data struct {
		Alerts []struct {
			Labels, Annotations map[string]string
			State               string
		} `json:"alerts"`
	}
	if err := a.get(ctx, "/api/v1/alerts", &data); err != nil {
		return nil, fmt.Errorf("alerts: %w", err)
	}
	firing := map[string]string{}
	for _, alert := range data.Alerts {
		if alert.State == "firing" {
			firing[alert.Labels["alertname"]] = alert.Annotations["summary"]
		}
	}
	return firing, nil
}

// maxAnswer bounds answers.
const maxAnswer = 64 << 20

func (a API) get(ctx context.Context, path string, data any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, a.URL+path, nil)
	if err != nil {
		return err
	}
	res, err := a.HTTP.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	out := struct {
		Error string `json:"error"`
		Data  any    `json:"data"`
	}{Data: data}
	if err := json.NewDecoder(io.LimitReader(res.Body, maxAnswer)).Decode(&out); err != nil {
		return fmt.Errorf("%s: %w", res.Status, err)
	}
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", res.Status, out.Error)
	}
	return nil
}
