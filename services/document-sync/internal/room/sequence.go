package room

import "slices"

// sequence records which committed updates a doc contains.
type sequence struct {
	at    int64   // everything up to here
	ahead []int64 // and these, ascending
	want  int64   // known to exist
}

func (s *sequence) has(n int64) bool {
	if n <= s.at {
		return true
	}
	_, ok := slices.BinarySearch(s.ahead, n)
	return ok
}

// note adds an update.
func (s *sequence) note(n int64) {
	if n == s.at+1 {
		s.reach(n)
		return
	}
	if i, ok := slices.BinarySearch(s.ahead, n); n > s.at && !ok {
		s.ahead = slices.Insert(s.ahead, i, n)
	}
}

// reach records that all updates up to n are contained.
func (s *sequence) reach(n int64) {
	s.at = max(s.at, n)
	i := 0
	for i < len(s.ahead) && s.ahead[i] <= s.at+1 {
		s.at = max(s.at, s.ahead[i])
		i++
	}
	if s.ahead = s.ahead[i:]; len(s.ahead) == 0 {
		s.ahead = nil
	}
}

// gap reports whether a known update is missing.
func (s *sequence) gap() bool { return len(s.ahead) > 0 || s.want > s.at }
