package apis

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
)

// seed returns the data of a new account: a week around today.
func seed(now time.Time) *account {
	a := &account{events: map[string]object{}, blocks: map[string][]object{}}
	r := &request{now: now, acc: a}
	day := time.Date(now.Year(), now.Month(), now.Day(), 0, 0, 0, 0, time.UTC)
	for i, e := range []struct {
		days, hour, minutes int // minutes 0: the whole day
		title, where, about string
		guests              []string
	}{
		{-1, 15, 30, "Demo for the board", "Room Baltic", "Show the new search.", []string{"mara@example.com"}},
		{0, 9, 15, "Stand-up", "", "What I did, what I will do, what is in the way.", []string{"mara@example.com", "jonas@example.com"}},
		{0, 17, 60, "Dentist", "12 Harbour Street", "", nil},
		{1, 9, 15, "Stand-up", "", "What I did, what I will do, what is in the way.", []string{"mara@example.com", "jonas@example.com"}},
		{1, 13, 60, "Lunch with Priya", "Café Linde", "", []string{"priya@example.com"}},
		{2, 10, 90, "Planning: next quarter", "Room Atlantic", strings.Repeat("Bring numbers on growth, cost and support. ", 8), []string{"mara@example.com", "jonas@example.com", "li@example.com"}},
		{3, 0, 0, "Li is on holiday", "", "", nil},
		{3, 14, 45, "Interview: back-end engineer", "Video call", "Read the portfolio before.", []string{"jonas@example.com"}},
		{4, 16, 60, "Review of the week", "", "", []string{"mara@example.com"}},
		{9, 11, 60, "Visit of the auditors", "Room Pacific", "", []string{"mara@example.com"}},
	} {
		at := day.AddDate(0, 0, e.days).Add(time.Duration(e.hour) * time.Hour)
		o := object{"id": fmt.Sprintf("seed%05d", i), "kind": "calendar#event", "status": "confirmed", "summary": e.title, "htmlLink": fmt.Sprintf("https://calendar.example.com/event?eid=seed%05d", i)}
		for field, t := range map[string]time.Time{"start": at, "end": at.Add(time.Duration(e.minutes) * time.Minute)} {
			o[field] = object{"dateTime": t.Format(time.RFC3339), "timeZone": "UTC"}
			if e.minutes == 0 {
				o[field] = object{"date": t.AddDate(0, 0, map[string]int{"end": 1}[field]).Format(time.DateOnly)}
			}
		}
		if e.where != "" {
			o["location"] = e.where
		}
		if e.about != "" {
			o["description"] = strings.TrimSpace(e.about)
		}
		guests := []any{}
		for _, g := range e.guests {
			guests = append(guests, object{"email": g, "responseStatus": "accepted"})
		}
		if len(guests) > 0 {
			o["attendees"] = guests
		}
		r.touch(o)
		a.events[o["id"].(string)] = o
	}
	for i, t := range []struct {
		title, notes string
		due          int // days from today
		done         bool
	}{
		{"Send the offer to Priya", "She wants two variants.", 1, false},
		{"Book a train to Hamburg", "", 3, false},
		{"Read the draft of the security review", "", 0, false},
		{"Renew the passport", "Bring a photo.", 20, false},
		{"Pay the invoice of the caterer", "", -2, true},
	} {
		o := object{"kind": "tasks#task", "id": fmt.Sprintf("seedtask%d", i), "title": t.title, "status": "needsAction", "due": day.AddDate(0, 0, t.due).Format("2006-01-02") + "T00:00:00.000Z"}
		if t.notes != "" {
			o["notes"] = t.notes
		}
		r.touch(o)
		if t.done {
			o["status"], o["completed"], o["hidden"] = "completed", o["updated"], true
		}
		a.tasks = append(a.tasks, o)
	}
	a.page(now, "Team handbook", handbook())
	a.page(now.Add(-26*time.Hour), "Meeting notes", []object{
		block("heading_2", "Last Monday"), block("paragraph", "We agreed to ship the search first."),
		block("to_do", "Mara writes the announcement"), block("to_do", "Jonas measures the load"),
	})
	a.page(now.Add(-200*time.Hour), "Reading list", []object{block("bulleted_list_item", "Designing Data-Intensive Applications"), block("bulleted_list_item", "The Mythical Man-Month")})
	return a
}

// PageID returns the id of the page that every account has under a title.
func PageID(title string) string {
	return uuid.NewSHA1(uuid.NameSpaceURL, []byte("https://www.notion.so/"+title)).String()
}

// page adds a page of Notion.
func (a *account) page(edited time.Time, title string, children []object) {
	id := PageID(title)
	a.pages = append(a.pages, object{
		"object": "page", "id": id, "url": "https://www.notion.so/" + strings.ReplaceAll(id, "-", ""),
		"last_edited_time": minutes(edited),
		"properties":       object{"title": object{"id": "title", "type": "title", "title": []object{{"type": "text", "plain_text": title}}}},
	})
	a.blocks[id] = a.store(id, children)
}

// store gives blocks ids, the same ones in every simulator, and takes the children that block left
// in them.
func (a *account) store(parent string, all []object) []object {
	for i, b := range all {
		id := uuid.NewSHA1(uuid.MustParse(parent), []byte(strconv.Itoa(i))).String()
		inner, _ := b["\x00children"].([]object)
		delete(b, "\x00children")
		b["id"], b["has_children"] = id, len(inner) > 0
		a.blocks[id] = a.store(id, inner)
	}
	return all
}

func block(kind, content string, children ...object) object {
	return object{"object": "block", "type": kind, kind: object{"rich_text": []object{{"type": "text", "plain_text": content, "text": object{"content": content}}}}, "\x00children": children}
}

func handbook() []object {
	all := []object{
		block("heading_1", "How we work"),
		block("paragraph", "We write things down, and we decide in the open."),
		block("bulleted_list_item", "Core hours are 10 to 15.", block("bulleted_list_item", "Fridays are free of meetings.")),
		block("numbered_list_item", "Say what you will do."), block("numbered_list_item", "Do it."), block("numbered_list_item", "Say that it is done."),
		block("quote", "Slow is smooth, and smooth is fast."),
	}
	code := block("code", "make test")
	code["code"].(object)["language"] = "shell"
	all = append(all, code, object{"object": "block", "type": "divider", "divider": object{}})
	for i := range 120 {
		all = append(all, block("paragraph", fmt.Sprintf("Rule %d. %s", i+1, strings.Repeat("Leave the place tidier than you found it. ", 3))))
	}
	return all
}

// file is what a path of the repository has.
type file struct {
	text   string
	link   string // target of a symlink
	module string // URL of a submodule
}

var files = map[string]file{
	"README.md":              {text: "# Research\n\nNot below ideas/.\n"},
	"secrets.txt":            {text: "canary\n"},
	"ideas/README.md":        {text: "# Ideas\n\n- `search.md`: better search\n- `pricing/tiers.md`: tiers\n"},
	"ideas/search.md":        {text: "# Better search\n\nPeople search by what they remember, not by what a thing is called.\n\n## What we know\n\n- 40 % of searches are repeated within a minute.\n- Half of all results that are opened are older than a month.\n\n## What to try\n\n1. Rank by who wrote it.\n2. Show the last things first.\n"},
	"ideas/pricing/tiers.md": {text: "# Tiers\n\nThree tiers: free, team, company. The free one ends at five members.\n"},
	"ideas/empty.md":         {},
	"ideas/limit.md":         {text: strings.Repeat("x", 51_200)},
	"ideas/over.md":          {text: strings.Repeat("x", 51_201)},
	"ideas/huge.bin":         {text: strings.Repeat("x", largest+1)},
	"ideas/link.md":          {link: "../../elsewhere/notes.md"},
	"ideas/vendor":           {module: "https://github.com/example/vendor.git"},
}
