package promptcache_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"signalbox.dev/services/simulator/internal/chat"
	"signalbox.dev/services/simulator/internal/promptcache"
)

// segments are a prompt written as "name:tokens:mark".
func segments(list ...string) []chat.Segment {
	var out []chat.Segment
	for _, s := range list {
		var name, mark string
		var tokens int
		if n, err := fmt.Sscanf(s, "%s %d %s", &name, &tokens, &mark); err != nil && n < 2 {
			panic(s)
		}
		out = append(out, chat.Segment{Canonical: []byte(name), Tokens: tokens, Mark: mark})
	}
	return out
}

// TestMarked follows a conversation with marks through the cache.
func TestMarked(t *testing.T) {
	t.Parallel()
	now := time.Unix(0, 0)
	c := promptcache.New(100, func() time.Time { return now })
	steps := []struct {
		name   string
		scope  string
		after  time.Duration
		prompt []chat.Segment
		want   chat.Usage
	}{
		{"unmarked", "a", 0, segments("tools 1500", "hi 10"), chat.Usage{Input: 1510}},
		{"too short", "a", 0, segments("tools 500 5m", "hi 10"), chat.Usage{Input: 510}},
		{"written", "a", 0, segments("tools 1500 5m", "hi 10"), chat.Usage{Input: 10, CacheWrite5m: 1500}},
		{"read", "a", 0, segments("tools 1500 5m", "ho 20"), chat.Usage{Input: 20, CacheRead: 1500}},
		{"other scope", "b", 0, segments("tools 1500 5m", "hi 10"), chat.Usage{Input: 10, CacheWrite5m: 1500}},
		{"longer", "a", 0, segments("tools 1500 5m", "ho 20", "yes 30 5m", "and 5"), chat.Usage{Input: 5, CacheRead: 1500, CacheWrite5m: 50}},
		{"looked back", "a", 0, segments("tools 1500", "ho 20", "yes 30", "and 5", "no 7 5m"), chat.Usage{CacheRead: 1550, CacheWrite5m: 12}},
		{"two lives", "a", 0, segments("other 2000 1h", "x 10 5m", "y 1"), chat.Usage{Input: 1, CacheWrite1h: 2000, CacheWrite5m: 10}},
		{"changed", "a", 0, segments("tools! 1500 5m", "hi 10"), chat.Usage{Input: 10, CacheWrite5m: 1500}},
		{"still there", "a", 4 * time.Minute, segments("tools 1500 5m", "ho 20"), chat.Usage{Input: 20, CacheRead: 1500}},
		{"prolonged", "a", 4 * time.Minute, segments("tools 1500 5m", "ho 20"), chat.Usage{Input: 20, CacheRead: 1500}},
		{"forgotten", "a", 6 * time.Minute, segments("tools 1500 5m", "ho 20"), chat.Usage{Input: 20, CacheWrite5m: 1500}},
		{"an hour", "a", 30 * time.Minute, segments("other 2000 1h", "y 1"), chat.Usage{Input: 1, CacheRead: 2000}},
	}
	for _, s := range steps {
		now = now.Add(s.after)
		if diff := cmp.Diff(s.want, c.Marked(s.scope, s.prompt)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", s.name, diff)
		}
	}
}

// TestAutomatic follows a conversation whose prefixes are cached without marks.
func TestAutomatic(t *testing.T) {
	t.Parallel()
	c := promptcache.New(100, func() time.Time { return time.Unix(0, 0) })
	steps := []struct {
		prompt []chat.Segment
		want   chat.Usage
	}{
		{segments("hi 1000"), chat.Usage{Input: 1000}},
		{segments("system 2000", "hi 10"), chat.Usage{Input: 2010}},
		{segments("system 2000", "ho 10"), chat.Usage{Input: 90, CacheRead: 1920}},
		{segments("system 2000", "hi 10", "hello 50", "more 5"), chat.Usage{Input: 145, CacheRead: 1920}},
		{segments("system 2000", "hi 10", "hello 50", "more 5", "a 300"), chat.Usage{Input: 317, CacheRead: 2048}},
	}
	for i, s := range steps {
		if diff := cmp.Diff(s.want, c.Automatic("a", s.prompt)); diff != "" {
			t.Errorf("step %d (-want +got):\n%s", i, diff)
		}
	}
}

// TestBound checks that the cache forgets what is over its size.
func TestBound(t *testing.T) {
	t.Parallel()
	c := promptcache.New(2, func() time.Time { return time.Unix(0, 0) })
	for _, name := range []string{"a", "b", "c"} {
		c.Marked("s", segments(name+" 2000 5m"))
	}
	if got := c.Marked("s", segments("a 2000 5m")).CacheRead; got != 0 {
		t.Errorf("the oldest prefix was read (%d tokens), want it forgotten", got)
	}
	if got := c.Marked("s", segments("c 2000 5m")).CacheRead; got != 2000 {
		t.Errorf("the newest prefix = %d tokens, want 2000", got)
	}
	c.Reset()
	if got := c.Marked("s", segments("c 2000 5m")).CacheRead; got != 0 {
		t.Errorf("after Reset %d tokens were read", got)
	}
}
