package tools

import (
	"context"
	_ "embed"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"signalbox.dev/pkg/fault"
	toolv1 "signalbox.dev/proto/signalbox/tool/v1"
	"signalbox.dev/services/tool-executor/internal/egress"
	"signalbox.dev/services/tool-executor/internal/tool"
)

//go:embed calendar_update_event.md
var calendarUpdateEventPage string

type calendarUpdateArgs struct {
	ID          string    `json:"id"`
	Title       *string   `json:"title"`
	Start       string    `json:"start"`
	End         string    `json:"end"`
	Timezone    string    `json:"timezone"`
	CalendarID  string    `json:"calendar_id"`
	Description *string   `json:"description"`
	Location    *string   `json:"location"`
	Attendees   *[]string `json:"attendees"`
	Notify      bool      `json:"notify"`
}

// gcalPatch is a change of an event: what is nil stays as it is.
type gcalPatch struct {
	Summary     *string         `json:"summary,omitempty"`
	Description *string         `json:"description,omitempty"`
	Location    *string         `json:"location,omitempty"`
	Start       *gcalTime       `json:"start,omitempty"`
	End         *gcalTime       `json:"end,omitempty"`
	Attendees   *[]gcalAttendee `json:"attendees,omitempty"`
	Extended    *gcalExtended   `json:"extendedProperties,omitempty"`
}

const (
	// lastCalls is the private property of an event that has the keys of the last updates.
	lastCalls = "signalboxCalls"
	maxCalls  = 8
)

// calendarUpdateEvent notes the call's key in a private property of the event, which no calendar
// shows. The change is sent on condition that the event is as it was read (If-Match), so that a
// late repetition cannot undo what others have changed.
func calendarUpdateEvent(d Deps) (tool.Tool, error) {
	spec, err := tool.Spec{
		Name: "calendar_update_event", Effect: toolv1.Effect_EFFECT_VERIFY, NeedsApproval: true, ReadsUntrusted: true, ReadsPrivate: true, ActsOutside: true,
	}.Describe(calendarUpdateEventPage)
	return tool.Define(spec, func(ctx context.Context, c tool.Call, a calendarUpdateArgs) (tool.Result, error) {
		zone, err := zoneOf(c, a.Timezone)
		if err != nil {
			return tool.Result{}, err
		}
		patch := gcalPatch{Summary: a.Title, Description: a.Description, Location: a.Location}
		if a.Attendees != nil {
			patch.Attendees = &[]gcalAttendee{}
			for _, mail := range *a.Attendees {
				*patch.Attendees = append(*patch.Attendees, gcalAttendee{Email: mail})
			}
		}
		before, _, err := d.readEvent(ctx, a.CalendarID, a.ID, "etag,status,start,end,extendedProperties/private")
		if err != nil {
			return tool.Result{}, err
		}
		if before.Status == "cancelled" {
			return tool.Result{}, fault.Coded(fault.NotFound, egress.CodeGone, "the event is deleted")
		}
		if patch.Start, patch.End, err = a.moved(&before, zone); err != nil {
			return tool.Result{}, err
		}
		patch.Extended = &gcalExtended{Private: map[string]string{lastCalls: withCall(before.calls(), keyText(c.Key))}}
		path, err := calendarPath(a.CalendarID, a.ID)
		if err != nil {
			return tool.Result{}, err
		}
		after, reply, err := d.changeEvent(ctx, egress.Request{
			Method: http.MethodPatch, Path: path, Query: url.Values{"sendUpdates": {sendUpdates(a.Notify)}},
			Header: map[string]string{"If-Match": before.ETag}, Body: patch,
		})
		if err != nil {
			return tool.Result{}, err
		}
		return changedEvent(after, reply), nil
	}, func(a calendarUpdateArgs) string { return a.ID }).When(d.googleReady).Verified(func(ctx context.Context, c tool.Call, a calendarUpdateArgs) (tool.Result, bool, error) {
		e, reply, err := d.readEvent(ctx, a.CalendarID, a.ID, changedFields+",extendedProperties/private")
		if fault.KindOf(err) == fault.NotFound {
			return tool.Result{}, false, nil
		}
		if err != nil || !slices.Contains(e.calls(), keyText(c.Key)) {
			return tool.Result{}, false, err
		}
		return changedEvent(e, reply), true, nil
	}), err
}

// calls are the keys of the updates that an event remembers, the newest last.
func (e *gcalEvent) calls() []string {
	if e.Extended == nil {
		return nil
	}
	return strings.Fields(e.Extended.Private[lastCalls])
}

func withCall(calls []string, key string) string {
	calls = append(slices.Clone(calls), key)
	return strings.Join(calls[max(0, len(calls)-maxCalls):], " ")
}

// moved returns the new start and end of an event; nil for what stays. If only the start is
// given, the event keeps its length.
func (a *calendarUpdateArgs) moved(before *gcalEvent, zone *time.Location) (start, end *gcalTime, err error) {
	if a.Start == "" && a.End == "" {
		return nil, nil, nil
	}
	startText, endText := a.Start, a.End
	if startText == "" {
		startText = before.Start.text()
	}
	if endText == "" {
		start, err := calendarTime("start", startText, zone)
		if err != nil {
			return nil, nil, err
		}
		from, _ := start.at(zone)
		was, ok := before.Start.at(zone)
		until, ends := before.End.at(zone)
		if ok && ends && (start.Date == nil) == (before.Start.Date == nil) {
			endText = from.Add(until.Sub(was)).Format(time.RFC3339)
			if start.Date != nil {
				days := int((until.Sub(was) + 12*time.Hour) / (24 * time.Hour)) // a day may have 23 hours
				endText = from.AddDate(0, 0, days).Format(time.DateOnly)
			}
		}
	}
	return span(startText, endText, zone)
}
