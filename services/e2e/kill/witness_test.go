package kill

import (
	"testing"
	"time"
)

// TestAcceptedAt checks that a run without a message is not considered awaited.
func TestAcceptedAt(t *testing.T) {
	t.Parallel()
	at := func(n int) time.Time { return time.Unix(int64(n), 0) }
	tr := newTranscript("session")
	tr.asks = []*ask{
		{ordinal: 1, span: span{at(10), at(11)}},
		{ordinal: 1, mode: "steer", span: span{at(12), at(13)}},
		{span: span{from: at(20)}},
	}
	for ordinal, want := range map[int64]time.Time{1: at(11), 2: at(20)} {
		if got := tr.acceptedAt(ordinal); !got.Equal(want) {
			t.Errorf("acceptedAt(%d) = %s, want %s", ordinal, got, want)
		}
	}
	tr.asks[2].ordinal, tr.asks[2].to = 2, at(21)
	if got := tr.acceptedAt(2); !got.Equal(at(21)) {
		t.Errorf("acceptedAt(2) after its acceptance = %s, want %s", got, at(21))
	}
	if got := tr.acceptedAt(3); !got.IsZero() {
		t.Errorf("acceptedAt(3) = %s, want none", got)
	}
}
