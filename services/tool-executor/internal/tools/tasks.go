package tools

import (
	"cmp"
	"context"
	"strings"
	"time"

	"signalbox.dev/services/tool-executor/internal/egress"
)

// gtask is a task as Google Tasks has it.
type gtask struct {
	ID      string `json:"id,omitempty"`
	Title   string `json:"title,omitempty"`
	Notes   string `json:"notes,omitempty"`
	Status  string `json:"status,omitempty"`
	Due     string `json:"due,omitempty"`
	Deleted bool   `json:"deleted,omitempty"`
}

const taskCompleted = "completed"

// taskView is a task as tools show it.
type taskView struct {
	ID        string `json:"id"`
	Title     string `json:"title"`
	Status    string `json:"status"`
	Due       string `json:"due,omitempty"`
	Notes     string `json:"notes,omitempty"`
	Simulated bool   `json:"simulated,omitempty"`
}

// maxNotes bounds what tasks_list shows of a task's notes, in characters.
const maxNotes = 300

func (t *gtask) view(r egress.Reply) taskView {
	due, _, _ := strings.Cut(t.Due, "T") // Google keeps the day only
	return taskView{ID: t.ID, Title: shorten(t.Title, maxTitle), Status: t.Status, Due: due, Simulated: r.Simulated}
}

const taskFields = "id,title,status,due,deleted"

// tasksPath is the path of a list's tasks, or with an id of one task.
func tasksPath(list, task string) (string, error) {
	segments := []string{"tasks", "v1", "lists", cmp.Or(list, "@default"), "tasks"}
	if task != "" {
		segments = append(segments, task)
	}
	return egress.Path(segments...)
}

// taskCall sends a request to Google Tasks, which may take the time that the operator allows.
func (d Deps) taskCall(ctx context.Context, r egress.Request, out any) (egress.Reply, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(d.TasksTimeoutMS)*time.Millisecond)
	defer cancel()
	r.Provider = google
	return d.Egress.Do(ctx, r, out)
}

// taskSettle is Spec.Settle of the tools that change tasks: a request that was given up may
// still be served for as long as one may take.
func (d Deps) taskSettle() time.Duration {
	return time.Duration(d.TasksTimeoutMS)*time.Millisecond + 5*time.Second
}
