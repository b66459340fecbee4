package hashchain

import (
	"unicode/utf8"

	"github.com/google/uuid"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/pg"
)

// The most of a search: characters of its text, and members.
const (
	maxSearchText    = 200
	maxSearchMembers = 100
)

// Search selects the rows of an audit that contain a text, in any case, or are by one of the members
// whom the text names. The zero Search selects all rows.
type Search struct {
	text    string
	members []uuid.UUID
}

// NewSearch returns a search, or a fault that says what is too long or no id.
func NewSearch(text string, members []string) (Search, error) {
	if utf8.RuneCountInString(text) > maxSearchText || len(members) > maxSearchMembers {
		return Search{}, fault.New(fault.Invalid, "query has at most %d characters and %d members", maxSearchText, maxSearchMembers)
	}
	s := Search{text: text, members: make([]uuid.UUID, len(members))}
	for i, m := range members {
		var err error
		if s.members[i], err = uuid.Parse(m); err != nil {
			return Search{}, fault.New(fault.Invalid, "query_members: %q is not an id", m)
		}
	}
	return s, nil
}

// All reports whether the search selects all rows.
func (s Search) All() bool { return s.text == "" }

// Where returns the condition of the selected rows and sets its arguments @text, @pattern and
// @members. Columns, separated by commas, are what is searched, beside member_id.
func (s Search) Where(args pg.Args, columns string) string {
	members := s.members
	if members == nil {
		members = []uuid.UUID{} // NULL would match no row
	}
	args["text"], args["pattern"], args["members"] = s.text, pg.Containing(s.text), members
	return `(@text = '' OR member_id = ANY (@members::uuid[]) OR concat_ws(' ', member_id, ` + columns + `) ILIKE @pattern)`
}
