package tools

import (
	"context"
	_ "embed"
	"net/http"
	"net/url"
	"time"

	"signalbox.dev/pkg/fault"
	toolv1 "signalbox.dev/proto/signalbox/tool/v1"
	"signalbox.dev/services/tool-executor/internal/egress"
	"signalbox.dev/services/tool-executor/internal/tool"
)

//go:embed calendar_create_event.md
var calendarCreateEventPage string

type calendarCreateArgs struct {
	Title       string   `json:"title"`
	Start       string   `json:"start"`
	End         string   `json:"end"`
	Timezone    string   `json:"timezone"`
	CalendarID  string   `json:"calendar_id"`
	Description string   `json:"description"`
	Location    string   `json:"location"`
	Attendees   []string `json:"attendees"`
	Notify      bool     `json:"notify"`
}

// calendarCreateEvent gives the event an id that is made from the call's key. Google refuses
// an id that is taken, so the event is created once however often the call runs.
func calendarCreateEvent(d Deps) (tool.Tool, error) {
	spec, err := tool.Spec{
		Name: "calendar_create_event", Effect: toolv1.Effect_EFFECT_KEYED, NeedsApproval: true, ActsOutside: true,
	}.Describe(calendarCreateEventPage)
	return tool.Define(spec, func(ctx context.Context, c tool.Call, a calendarCreateArgs) (tool.Result, error) {
		zone, err := zoneOf(c, a.Timezone)
		if err != nil {
			return tool.Result{}, err
		}
		e := gcalEvent{ID: keyText(c.Key), Summary: a.Title, Description: a.Description, Location: a.Location}
		if e.Start, e.End, err = span(a.Start, a.End, zone); err != nil {
			return tool.Result{}, err
		}
		for _, mail := range a.Attendees {
			e.Attendees = append(e.Attendees, gcalAttendee{Email: mail})
		}
		path, err := calendarPath(a.CalendarID, "")
		if err != nil {
			return tool.Result{}, err
		}
		created, reply, err := d.changeEvent(ctx, egress.Request{
			Method: http.MethodPost, Path: path, Query: url.Values{"sendUpdates": {sendUpdates(a.Notify)}}, Body: e,
		})
		if egress.HasCode(err, egress.CodeConflict) { // an earlier try has created it
			created, reply, err = d.readEvent(ctx, a.CalendarID, e.ID, changedFields)
		}
		if err != nil {
			return tool.Result{}, err
		}
		return changedEvent(created, reply), nil
	}, func(a calendarCreateArgs) string { return a.Title }).When(d.googleReady), err
}

// span reads start and end of an event. Without an end it takes an hour, or the whole day.
func span(startText, endText string, zone *time.Location) (start, end *gcalTime, err error) {
	if start, err = calendarTime("start", startText, zone); err != nil {
		return nil, nil, err
	}
	from, _ := start.at(zone) // calendarTime has read it
	if endText == "" {
		endText = from.Add(time.Hour).Format(time.RFC3339)
		if start.Date != nil {
			endText = from.AddDate(0, 0, 1).Format(time.DateOnly)
		}
	}
	if end, err = calendarTime("end", endText, zone); err != nil {
		return nil, nil, err
	}
	to, _ := end.at(zone)
	switch {
	case (start.Date == nil) != (end.Date == nil):
		return nil, nil, fault.New(fault.Invalid, "arguments: start and end must both be dates, or both be times")
	case !to.After(from):
		return nil, nil, fault.New(fault.Invalid, "arguments.end: must be after the start; the end of an event of whole days is the day after the last")
	}
	return start, end, nil
}

// changedFields are those that are asked for of an event that was changed.
const changedFields = "id,status,summary,start,end,htmlLink"

// changeEvent sends a change of an event and returns the event.
func (d Deps) changeEvent(ctx context.Context, r egress.Request) (e gcalEvent, reply egress.Reply, err error) {
	r.Provider = google
	r.Query.Set("fields", changedFields)
	reply, err = d.Egress.Do(ctx, r, &e)
	return e, reply, err
}

// readEvent returns fields of an event.
func (d Deps) readEvent(ctx context.Context, calendar, event, fields string) (e gcalEvent, reply egress.Reply, err error) {
	path, err := calendarPath(calendar, event)
	if err != nil {
		return e, reply, err
	}
	reply, err = d.Egress.Do(ctx, egress.Request{Provider: google, Path: path, Query: url.Values{"fields": {fields}}}, &e)
	return e, reply, err
}

func changedEvent(e gcalEvent, reply egress.Reply) tool.Result {
	out := e.brief()
	out.Link, out.Simulated = e.Link, reply.Simulated
	return tool.Object(out)
}
