package tools

import (
	"regexp"
	"strings"

	"signalbox.dev/pkg/id"
)

// A marker is a short text that is left beside what a call has created, where the service has no
// field of its own for that. A repeated call finds it and creates nothing. It is visible,
// because a hidden one might not survive; the tools leave it out of what they read.

// marker is what a call leaves. Its 60 bits come from the call's key.
func marker(key id.Operation) string { return "sb:" + keyText(key)[:12] }

var markerForm = regexp.MustCompile(`\s*sb:[0-9a-v]{12}$`)

// withoutMarker returns a text without the marker at its end.
func withoutMarker(s string) string {
	return strings.TrimSpace(markerForm.ReplaceAllString(strings.TrimSpace(s), ""))
}
