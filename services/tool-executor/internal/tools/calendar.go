package tools

import (
	"cmp"
	"context"
	"encoding/base32"
	"strings"
	"time"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/services/tool-executor/internal/egress"
	"signalbox.dev/services/tool-executor/internal/tool"
)

const google = "google"

// googleReady says whether the workspace has connected Google.
func (d Deps) googleReady(ctx context.Context) tool.Availability {
	return d.Egress.Available(ctx, google)
}

// gcalEvent is an event as Google Calendar has it.
type gcalEvent struct {
	ID          string         `json:"id,omitempty"`
	ETag        string         `json:"etag,omitempty"`
	Status      string         `json:"status,omitempty"`
	Summary     string         `json:"summary,omitempty"`
	Description string         `json:"description,omitempty"`
	Location    string         `json:"location,omitempty"`
	Start       *gcalTime      `json:"start,omitempty"`
	End         *gcalTime      `json:"end,omitempty"`
	Attendees   []gcalAttendee `json:"attendees,omitempty"`
	Link        string         `json:"htmlLink,omitempty"`
	Extended    *gcalExtended  `json:"extendedProperties,omitempty"`
}

// gcalTime is a date, or a time with its zone. In a change, the member that is nil is removed.
type gcalTime struct {
	Date     *string `json:"date"`
	DateTime *string `json:"dateTime"`
	TimeZone *string `json:"timeZone,omitempty"`
}

type gcalAttendee struct {
	Email    string `json:"email"`
	Name     string `json:"displayName,omitempty"`
	Response string `json:"responseStatus,omitempty"`
}

// gcalExtended are properties of an event that no calendar shows.
type gcalExtended struct {
	Private map[string]string `json:"private,omitempty"`
}

// text is the time as tools show it.
func (t *gcalTime) text() string {
	switch {
	case t == nil:
		return ""
	case t.DateTime != nil:
		return *t.DateTime
	case t.Date != nil:
		return *t.Date
	}
	return ""
}

// at is the time as an instant; a date begins in the given zone. It is false for one that does
// not parse.
func (t *gcalTime) at(zone *time.Location) (time.Time, bool) {
	if t != nil && t.DateTime != nil {
		at, err := time.Parse(time.RFC3339, *t.DateTime)
		return at, err == nil
	}
	at, err := time.ParseInLocation(time.DateOnly, t.text(), zone)
	return at, err == nil
}

// calendarEvent is an event as tools show it.
type calendarEvent struct {
	ID               string         `json:"id"`
	Title            string         `json:"title"`
	Start            string         `json:"start"`
	End              string         `json:"end"`
	Description      string         `json:"description,omitempty"`
	Location         string         `json:"location,omitempty"`
	Attendees        []gcalAttendee `json:"attendees,omitempty"`
	AttendeesOmitted int            `json:"attendees_omitted,omitempty"`
	Link             string         `json:"link,omitempty"`
	Simulated        bool           `json:"simulated,omitempty"`
}

// Bounds of what is shown of an event, in characters or people.
const (
	maxTitle     = 200
	maxAttendees = 20
)

func (e *gcalEvent) brief() calendarEvent {
	return calendarEvent{ID: e.ID, Title: shorten(e.Summary, maxTitle), Start: e.Start.text(), End: e.End.text()}
}

// calendarPath is the path of a calendar's events, or with an id of one event.
func calendarPath(calendar, event string) (string, error) {
	segments := []string{"calendar", "v3", "calendars", cmp.Or(calendar, "primary"), "events"}
	if event != "" {
		segments = append(segments, event)
	}
	return egress.Path(segments...)
}

// calendarTime reads a time of the arguments: RFC 3339, or a date, which Google counts in the
// calendar's own zone.
func calendarTime(field, text string, zone *time.Location) (*gcalTime, error) {
	if _, err := time.Parse(time.DateOnly, text); err == nil {
		return &gcalTime{Date: &text}, nil
	}
	if at, err := time.Parse(time.RFC3339, text); err == nil {
		text = at.Format(time.RFC3339)
		t := &gcalTime{DateTime: &text}
		if name := zone.String(); name != "UTC" {
			t.TimeZone = &name
		}
		return t, nil
	}
	return nil, badTime(field)
}

func badTime(field string) error {
	return fault.New(fault.Invalid, "arguments.%s: must be a time such as 2026-03-01T09:00:00+01:00, or a date such as 2026-03-01", field)
}

// zoneOf returns the zone that a call asks for, else the member's, else UTC.
func zoneOf(c tool.Call, asked string) (*time.Location, error) {
	zone, ok := location(asked)
	if !ok {
		return nil, fault.New(fault.Invalid, "arguments.timezone: %q is not an IANA time zone; use one such as Europe/Berlin, or leave it out", shorten(asked, 100))
	}
	if asked == "" {
		if own, ok := location(c.Timezone); ok {
			zone = own
		}
	}
	return zone, nil
}

// keyText writes a call's key in the alphabet that Google allows in the ids of events.
func keyText(key id.Operation) string {
	b := key.UUID
	return strings.ToLower(base32.HexEncoding.WithPadding(base32.NoPadding).EncodeToString(b[:]))
}

// shorten cuts a text after n characters and says so.
func shorten(s string, n int) string {
	s = strings.TrimSpace(s)
	if r := []rune(s); len(r) > n {
		return strings.TrimSpace(string(r[:n])) + "…"
	}
	return s
}

// sendUpdates is Google's parameter for whether guests are told.
func sendUpdates(notify bool) string {
	if notify {
		return "all"
	}
	return "none"
}
