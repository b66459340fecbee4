package main

import (
	"os/exec"
	"strings"
	"testing"
)

// A database that a newer version has migrated is refused, or left as it is with --allow-newer.
func TestMigrateNewer(t *testing.T) {
	t.Parallel()
	p := newPlace(t, t.TempDir())
	if err := p.exec(t.Context(), "INSERT INTO gateway.goose_db_version (version_id, is_applied) VALUES (9999, true)"); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		args []string
		ok   bool
		want string
	}{
		{[]string{"migrate"}, false, "the database has migration 9999"},
		{[]string{"migrate", "--allow-newer"}, true, "a newer version of Signalbox has migrated it; nothing was changed"},
	} {
		cmd := exec.CommandContext(t.Context(), "signalbox", tt.args...)
		cmd.Env = append(cmd.Environ(), "DATABASE_URL="+p.adminURL)
		out, err := cmd.CombinedOutput()
		if (err == nil) != tt.ok || !strings.Contains(string(out), tt.want) {
			t.Errorf("signalbox %s: %v, %q, want it to say %q", strings.Join(tt.args, " "), err, out, tt.want)
		}
	}
}
