package apis

import (
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"time"
)

// owner is whose calendar and tasks these are.
const owner = "you@example.com"

func (s *Server) calendarRoutes() {
	const events = "/calendar/v3/calendars/{calendar}/events"
	for pattern, do := range map[string]func(r *request) (object, *apiError){
		"GET " + events:                 listEvents,
		"POST " + events:                insertEvent,
		"GET " + events + "/{event}":    getEvent,
		"PATCH " + events + "/{event}":  patchEvent,
		"DELETE " + events + "/{event}": deleteEvent,
	} {
		s.handle("google", pattern, func(r *request) (object, *apiError) {
			if c := r.PathValue("calendar"); c != "primary" && c != owner {
				return nil, errNotFound
			}
			return r.partial(do(r))
		})
	}
}

func listEvents(r *request) (object, *apiError) {
	q := r.URL.Query()
	var bounds [2]time.Time
	for i, name := range []string{"timeMin", "timeMax"} {
		if v := q.Get(name); v != "" {
			at, err := time.Parse(time.RFC3339, v)
			if err != nil {
				return nil, refuse(http.StatusBadRequest, "badRequest", "Bad Request")
			}
			bounds[i] = at
		}
	}
	if q.Get("orderBy") == "startTime" && q.Get("singleEvents") != "true" {
		return nil, refuse(http.StatusBadRequest, "badRequest", "The requested ordering is not available for the particular query.")
	}
	var all []object
	for _, e := range r.acc.events {
		deleted := e["status"] == "cancelled"
		from, to := when(e, "start"), when(e, "end")
		if deleted && q.Get("showDeleted") != "true" ||
			!bounds[0].IsZero() && !to.After(bounds[0]) || !bounds[1].IsZero() && !from.Before(bounds[1]) ||
			!strings.Contains(strings.ToLower(text(e, "summary")+" "+text(e, "description")+" "+text(e, "location")), strings.ToLower(q.Get("q"))) {
			continue
		}
		all = append(all, e)
	}
	slices.SortFunc(all, func(a, b object) int {
		if c := when(a, "start").Compare(when(b, "start")); c != 0 {
			return c
		}
		return strings.Compare(text(a, "id"), text(b, "id"))
	})
	items, next, e := r.page(all, 250, 2500)
	if e != nil {
		return nil, e
	}
	return list("calendar#events", items, next), nil
}

// when is the start or the end of an event; days count in UTC.
func when(e object, field string) time.Time {
	t, _ := e[field].(object)
	if at, err := time.Parse(time.RFC3339, text(t, "dateTime")); err == nil {
		return at
	}
	at, _ := time.Parse(time.DateOnly, text(t, "date"))
	return at
}

var eventID = regexp.MustCompile(`^[a-v0-9]{5,}$`)

func insertEvent(r *request) (object, *apiError) {
	id := text(r.body, "id")
	if id == "" {
		r.acc.next++
		id = fmt.Sprintf("event%05d", r.acc.next)
	}
	switch {
	case !eventID.MatchString(id), len(id) > 1024:
		return nil, invalid("Invalid resource id value.")
	case r.acc.events[id] != nil:
		return nil, refuse(http.StatusConflict, "duplicate", "The requested identifier already exists.")
	case len(r.acc.events) >= maxThings:
		return nil, errFull
	}
	e := object{}
	merge(e, r.body)
	if err := checkEvent(e); err != nil {
		return nil, err
	}
	e["id"], e["status"], e["kind"] = id, "confirmed", "calendar#event"
	e["created"], e["htmlLink"] = r.now.UTC().Format(time.RFC3339Nano), "https://calendar.example.com/event?eid="+id
	r.touch(e)
	r.acc.events[id] = e
	return e, nil
}

func checkEvent(e object) *apiError {
	for _, field := range []string{"start", "end"} {
		if when(e, field).IsZero() {
			return refuse(http.StatusBadRequest, "required", "Missing %s time.", field)
		}
	}
	if when(e, "end").Before(when(e, "start")) {
		return refuse(http.StatusBadRequest, "timeRangeEmpty", "The specified time range is empty.")
	}
	return nil
}

// touch marks a change.
func (r *request) touch(o object) {
	r.acc.next++
	o["updated"], o["etag"] = r.now.UTC().Format("2006-01-02T15:04:05.000Z"), fmt.Sprintf(`"%d"`, r.acc.next)
}

func (r *request) event() (object, *apiError) {
	e := r.acc.events[r.PathValue("event")]
	if e == nil {
		return nil, errNotFound
	}
	return e, nil
}

func getEvent(r *request) (object, *apiError) { return r.event() }

func patchEvent(r *request) (object, *apiError) {
	e, err := r.event()
	if err != nil {
		return nil, err
	}
	if match := r.Header.Get("If-Match"); match != "" && match != e["etag"] {
		return nil, refuse(http.StatusPreconditionFailed, "conditionNotMet", "Precondition Failed")
	}
	changed := object{}
	merge(changed, e)
	merge(changed, r.body)
	changed["id"] = e["id"]
	if err := checkEvent(changed); err != nil {
		return nil, err
	}
	r.touch(changed)
	r.acc.events[text(e, "id")] = changed
	return changed, nil
}

func deleteEvent(r *request) (object, *apiError) {
	e, err := r.event()
	switch {
	case err != nil:
		return nil, err
	case e["status"] == "cancelled":
		return nil, errDeleted
	}
	e["status"] = "cancelled"
	r.touch(e)
	return nil, nil
}
