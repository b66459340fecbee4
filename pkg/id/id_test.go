package id_test

import (
	"encoding/json"
	"testing"

	"signalbox.dev/pkg/id"
)

func TestParse(t *testing.T) {
	t.Parallel()
	want := id.New[id.Run]()
	got, err := id.Parse[id.Run](want.String())
	if err != nil || got != want {
		t.Fatalf("Parse(%q) = %v, %v, want %v", want, got, err, want)
	}
	for _, bad := range []string{"", "x", "{" + want.String() + "}", "urn:uuid:" + want.String(), want.String()[:35], "zzzzzzzz-zzzz-zzzz-zzzz-zzzzzzzzzzzz", "00000000-0000-0000-0000-000000000000"} {
		if v, err := id.Parse[id.Run](bad); err == nil {
			t.Errorf("Parse(%q) = %v, want an error", bad, v)
		}
	}
}

func TestJSON(t *testing.T) {
	t.Parallel()
	want := id.New[id.Session]()
	b, err := json.Marshal(map[string]any{"id": want})
	if err != nil {
		t.Fatal(err)
	}
	var got struct{ ID id.Session }
	if err := json.Unmarshal(b, &got); err != nil || got.ID != want {
		t.Fatalf("Unmarshal(%s) = %v, %v, want %v", b, got.ID, err, want)
	}
}

func TestDerive(t *testing.T) {
	t.Parallel()
	space := id.New[id.Run]().UUID
	if id.Derive(space, "a", "bc") == id.Derive(space, "ab", "c") {
		t.Error("Derive: the border between parts does not count")
	}
	if first, again := id.Derive(space, "a"), id.Derive(space, "a"); first != again {
		t.Errorf("Derive = %v, then %v", first, again)
	}
}
