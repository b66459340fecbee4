package faults_test

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"

	"signalbox.dev/pkg/bus"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/subject"
	runv1 "signalbox.dev/proto/signalbox/run/v1"
)

// explain logs the stored conversation of a failed task, and its run's events in the order of the
// run log.
func (r *rig) explain(t *testing.T, k *task) {
	t.Helper()
	var stored string
	err := r.db.QueryRow(t.Context(), `
		select string_agg(line, E'\n' order by at) from (
			select created_at at, format('%s run %s: %s at claim %s, steps %s, event %s, ended %s %s%s', created_at, id, state, epoch, steps, last_event, ended_at, finish_reason, error_code) line
			from agent.runs where session_id = $1
			union all
			select created_at, format('%s %s of run %s step %s: %s', created_at, role, run_id, step_index, left(content::text, 100))
			from agent.messages where session_id = $1) all_of_it`, k.session).Scan(&stored)
	if err != nil {
		stored = err.Error()
	}
	t.Logf("run %s was asked for at %s, accepted at %s, ended at %s; stored is:\n%s\nand its log:\n%s", k.run, k.asked, k.accepted, k.ended, stored, r.log(t, k))
}

// log formats a run's events in the log: sequence, epoch, number, kind.
func (r *rig) log(t *testing.T, k *task) string {
	t.Helper()
	b, err := r.Bus(t.Context(), subject.Gateway)
	if err != nil {
		return err.Error()
	}
	defer b.Close()
	session, err := id.Parse[id.Session](k.session)
	if err != nil {
		return err.Error()
	}
	ws, err := id.Parse[id.Workspace](r.who.Workspace)
	if err != nil {
		return err.Error()
	}
	p := subject.Partition(session, partitions)
	last, err := b.Last(t.Context(), subject.EventStream(p), subject.Events(p, ws, session))
	if err != nil {
		return err.Error()
	}
	var out strings.Builder
	for m, err := range b.Read(t.Context(), subject.EventStream(p), subject.Events(p, ws, session), 0, last.Seq) {
		if err != nil {
			return out.String() + err.Error()
		}
		ev := new(runv1.Event)
		if err := bus.DecodeInto(&m.Message, ev); err != nil || ev.GetRunId() != k.run {
			continue
		}
		body := "?"
		ev.ProtoReflect().Range(func(f protoreflect.FieldDescriptor, _ protoreflect.Value) bool {
			if f.ContainingOneof() != nil {
				body = string(f.Name())
			}
			return true
		})
		fmt.Fprintf(&out, "%d: claim %d, event %d, %s\n", m.Seq, ev.GetEpoch(), ev.GetNumber(), body)
	}
	return out.String()
}
