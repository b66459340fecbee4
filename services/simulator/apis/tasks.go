package apis

import (
	"fmt"
	"net/http"
	"time"
)

func (s *Server) tasksRoutes() {
	const tasks = "/tasks/v1/lists/{list}/tasks"
	for pattern, do := range map[string]func(r *request) (object, *apiError){
		"GET " + tasks:                listTasks,
		"POST " + tasks:               insertTask,
		"GET " + tasks + "/{task}":    func(r *request) (object, *apiError) { return r.task() },
		"PATCH " + tasks + "/{task}":  patchTask,
		"DELETE " + tasks + "/{task}": deleteTask,
	} {
		s.handle("google", pattern, func(r *request) (object, *apiError) {
			if l := r.PathValue("list"); l != "@default" && l != "list1" {
				return nil, errNotFound
			}
			return r.partial(do(r))
		})
	}
}

func listTasks(r *request) (object, *apiError) {
	q := r.URL.Query()
	since, _ := time.Parse(time.RFC3339, q.Get("updatedMin"))
	var all []object
	for _, t := range r.acc.tasks {
		updated, _ := time.Parse(time.RFC3339, text(t, "updated"))
		if t["deleted"] == true && q.Get("showDeleted") != "true" || t["hidden"] == true && q.Get("showHidden") != "true" ||
			t["status"] == "completed" && q.Get("showCompleted") == "false" || updated.Before(since) {
			continue
		}
		all = append(all, t)
	}
	items, next, e := r.page(all, 20, 100)
	if e != nil {
		return nil, e
	}
	return list("tasks#tasks", items, next), nil
}

func insertTask(r *request) (object, *apiError) {
	if len(r.acc.tasks) >= maxThings {
		return nil, refuse(http.StatusForbidden, "quotaExceeded", "Quota Exceeded")
	}
	r.acc.next++
	t := object{"kind": "tasks#task", "status": "needsAction", "id": fmt.Sprintf("task%05d", r.acc.next)}
	if err := r.setTask(t); err != nil {
		return nil, err
	}
	// A new task is the first of its list.
	r.acc.tasks = append([]object{t}, r.acc.tasks...)
	return t, nil
}

// setTask applies the body to a task.
func (r *request) setTask(t object) *apiError {
	for _, name := range []string{"title", "notes", "due", "status"} {
		v, ok := r.body[name]
		if !ok {
			continue
		}
		s, isText := v.(string)
		due, err := time.Parse(time.RFC3339, s)
		if v != nil && !isText || name == "due" && v != nil && err != nil || name == "title" && len([]rune(s)) > 1024 || name == "notes" && len([]rune(s)) > 8192 {
			return invalid("Invalid Value")
		}
		if name == "due" && v != nil { // only the day is kept
			s = due.UTC().Format("2006-01-02") + "T00:00:00.000Z"
		}
		if t[name] = s; v == nil || s == "" {
			delete(t, name)
		}
	}
	if t["status"] != "needsAction" && t["status"] != "completed" {
		return invalid("Invalid task status")
	}
	r.touch(t)
	if delete(t, "completed"); t["status"] == "completed" {
		t["completed"] = t["updated"]
	}
	return nil
}

func (r *request) task() (object, *apiError) {
	for _, t := range r.acc.tasks {
		if t["id"] == r.PathValue("task") {
			return t, nil
		}
	}
	return nil, errNotFound
}

func patchTask(r *request) (object, *apiError) {
	t, err := r.task()
	if err != nil {
		return nil, err
	}
	return t, r.setTask(t)
}

func deleteTask(r *request) (object, *apiError) {
	t, err := r.task()
	if err == nil && t["deleted"] == true {
		err = errNotFound
	}
	if err != nil {
		return nil, err
	}
	t["deleted"] = true
	r.touch(t)
	return nil, nil
}
