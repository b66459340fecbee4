package tools

import (
	"context"
	_ "embed"
	"net/url"
	"strconv"
	"strings"
	"time"

	"signalbox.dev/pkg/fault"
	toolv1 "signalbox.dev/proto/signalbox/tool/v1"
	"signalbox.dev/services/tool-executor/internal/egress"
	"signalbox.dev/services/tool-executor/internal/tool"
)

//go:embed calendar_list_events.md
var calendarListEventsPage string

type calendarListArgs struct {
	StartDate           string `json:"start_date"`
	EndDate             string `json:"end_date"`
	Start               string `json:"start"`
	End                 string `json:"end"`
	Timezone            string `json:"timezone"`
	CalendarID          string `json:"calendar_id"`
	Query               string `json:"query"`
	MaxResults          int    `json:"max_results"`
	TruncateDescription int    `json:"truncate_description"`
	IncludeDescription  bool   `json:"include_description"`
	IncludeLocation     bool   `json:"include_location"`
	IncludeAttendees    bool   `json:"include_attendees"`
	IncludeLink         bool   `json:"include_link"`
	PageToken           string `json:"page_token"`
}

type calendarListed struct {
	Events        []calendarEvent `json:"events"`
	NextPageToken string          `json:"next_page_token,omitempty"`
	Simulated     bool            `json:"simulated,omitempty"`
}

const (
	defaultListed = 20
	defaultDays   = 7 // of a window without an end
)

func calendarListEvents(d Deps) (tool.Tool, error) {
	spec, err := tool.Spec{
		Name: "calendar_list_events", Effect: toolv1.Effect_EFFECT_PURE, ReadsUntrusted: true, ReadsPrivate: true,
		Less: "use a smaller max_results or a shorter window, or leave out descriptions and attendees",
	}.Describe(calendarListEventsPage)
	return tool.Define(spec, func(ctx context.Context, c tool.Call, a calendarListArgs) (tool.Result, error) {
		zone, err := zoneOf(c, a.Timezone)
		if err != nil {
			return tool.Result{}, err
		}
		from, to, err := a.window(d.Now(), zone)
		if err != nil {
			return tool.Result{}, err
		}
		path, err := calendarPath(a.CalendarID, "")
		if err != nil {
			return tool.Result{}, err
		}
		q := url.Values{
			"timeMin": {from.Format(time.RFC3339)}, "timeMax": {to.Format(time.RFC3339)}, "timeZone": {zone.String()},
			"singleEvents": {"true"}, "orderBy": {"startTime"}, "maxResults": {strconv.Itoa(limit(a.MaxResults, defaultListed, d.MaxEvents))},
			"fields": {"nextPageToken,items(" + strings.Join(a.fields(), ",") + ")"},
		}
		if a.Query != "" {
			q.Set("q", a.Query)
		}
		if a.PageToken != "" {
			q.Set("pageToken", a.PageToken)
		}
		var page struct {
			Items         []gcalEvent `json:"items"`
			NextPageToken string      `json:"nextPageToken"`
		}
		reply, err := d.Egress.Do(ctx, egress.Request{Provider: google, Path: path, Query: q}, &page)
		if err != nil {
			return tool.Result{}, err
		}
		out := calendarListed{Events: []calendarEvent{}, NextPageToken: page.NextPageToken, Simulated: reply.Simulated}
		for i := range page.Items {
			e := &page.Items[i]
			if e.Status != "cancelled" && e.within(from, to, zone) {
				out.Events = append(out.Events, a.view(e, d.MaxEventDescription))
			}
		}
		return tool.Object(out), nil
	}, nil).When(d.googleReady), err
}

// limit returns how many things to ask for.
func limit(asked, usual, most int) int {
	if asked <= 0 {
		asked = usual
	}
	return min(asked, most)
}

// window returns the time that is asked for; a week from now if none is.
func (a *calendarListArgs) window(now time.Time, zone *time.Location) (from, to time.Time, err error) {
	if a.Start != "" && a.StartDate != "" || a.End != "" && a.EndDate != "" {
		return from, to, fault.New(fault.Invalid, "arguments: use start and end, or start_date and end_date, not both")
	}
	field, text := oneOf("start", a.Start, "start_date", a.StartDate)
	if from, err = instant(field, text, zone, 0); err != nil {
		return from, to, err
	}
	if text == "" {
		from = now.Truncate(time.Second)
	}
	field, text = oneOf("end", a.End, "end_date", a.EndDate)
	if to, err = instant(field, text, zone, 1); err != nil {
		return from, to, err
	}
	if text == "" {
		to = from.AddDate(0, 0, defaultDays)
	}
	if !to.After(from) {
		return from, to, fault.New(fault.Invalid, "arguments.%s: must be after the start", field)
	}
	return from, to, nil
}

func oneOf(name, text, otherName, otherText string) (field, value string) {
	if text == "" && otherText != "" {
		return otherName, otherText
	}
	return name, text
}

// instant reads a time or a date, which covers its whole day: with days 1 it is the day's end.
// An empty text is the zero time.
func instant(field, text string, zone *time.Location, days int) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	if at, err := time.ParseInLocation(time.DateOnly, text, zone); err == nil {
		return at.AddDate(0, 0, days), nil
	}
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return at, badTime(field)
	}
	return at, nil
}

// fields are those that Google is asked for.
func (a *calendarListArgs) fields() []string {
	all := []string{"id", "status", "summary", "start", "end"}
	for field, wanted := range map[string]bool{
		"description": a.IncludeDescription, "location": a.IncludeLocation,
		"attendees(email,displayName,responseStatus)": a.IncludeAttendees, "htmlLink": a.IncludeLink,
	} {
		if wanted {
			all = append(all, field)
		}
	}
	return all
}

// within reports whether an event touches the window. One without a readable time does, since
// Google found it there.
func (e *gcalEvent) within(from, to time.Time, zone *time.Location) bool {
	start, ok := e.Start.at(zone)
	end, ends := e.End.at(zone)
	if !ok || !ends {
		return true
	}
	return start.Before(to) && (end.After(from) || start.Equal(end) && !start.Before(from))
}

// view returns what was asked for of an event.
func (a *calendarListArgs) view(e *gcalEvent, description int) calendarEvent {
	out := e.brief()
	if a.IncludeDescription {
		if a.TruncateDescription > 0 {
			description = a.TruncateDescription
		}
		out.Description = shorten(e.Description, description)
	}
	if a.IncludeLocation {
		out.Location = shorten(e.Location, maxTitle)
	}
	if a.IncludeAttendees {
		shown := min(len(e.Attendees), maxAttendees)
		out.Attendees, out.AttendeesOmitted = e.Attendees[:shown], len(e.Attendees)-shown
	}
	if a.IncludeLink {
		out.Link = e.Link
	}
	return out
}
