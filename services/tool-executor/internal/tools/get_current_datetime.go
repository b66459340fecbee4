package tools

import (
	"context"
	_ "embed"
	"time"
	_ "time/tzdata" // container images have no zone files

	toolv1 "signalbox.dev/proto/signalbox/tool/v1"
	"signalbox.dev/services/tool-executor/internal/tool"
)

//go:embed get_current_datetime.md
var getCurrentDatetimePage string

type datetimeArgs struct {
	Timezone string `json:"timezone"`
}

type datetime struct {
	ISO       string `json:"iso"`
	Date      string `json:"date"`
	Time      string `json:"time"`
	Timezone  string `json:"timezone"`
	UTCOffset string `json:"utc_offset"`
	Weekday   string `json:"weekday"`
	Unix      int64  `json:"unix"`
}

func getCurrentDatetime(d Deps) (tool.Tool, error) {
	spec, err := tool.Spec{Name: "get_current_datetime", Effect: toolv1.Effect_EFFECT_PURE, Always: true}.Describe(getCurrentDatetimePage)
	return tool.Define(spec, func(_ context.Context, c tool.Call, a datetimeArgs) (tool.Result, error) {
		zone, ok := location(a.Timezone)
		if a.Timezone == "" {
			if zone, ok = location(c.Timezone); !ok {
				zone, ok = time.UTC, true // the model cannot fix the member's setting
			}
		}
		if !ok {
			return tool.Errorf("invalid_arguments", "arguments.timezone: %q is not an IANA time zone; use one such as Europe/Berlin, or leave it out", a.Timezone), nil
		}
		now := d.Now().In(zone)
		return tool.Object(datetime{
			ISO: now.Format(time.RFC3339), Date: now.Format(time.DateOnly), Time: now.Format(time.TimeOnly),
			Timezone: zone.String(), UTCOffset: now.Format("-07:00"), Weekday: now.Weekday().String(), Unix: now.Unix(),
		}), nil
	}, func(a datetimeArgs) string { return a.Timezone }), err
}

// location returns the zone with an IANA name, UTC for an empty one. It refuses "Local",
// which is this machine's zone.
func location(name string) (*time.Location, bool) {
	zone, err := time.LoadLocation(name)
	return zone, err == nil && name != "Local"
}
