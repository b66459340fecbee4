package simulator

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"
	"time"

	"signalbox.dev/services/simulator/internal/journal"
	"signalbox.dev/services/simulator/internal/script"
)

const maxWait = 60 * time.Second

// Counts are the numbers of answers, by how they ended, and of open ones.
type Counts = journal.Counts

// Received is a request that the simulator received.
type Received = journal.Entry

// Requests returns the last requests that a script answered, or of all scripts for "", the
// newest last.
func (s *Simulator) Requests(script string) []Received { return s.journal.Requests(script, 0) }

// Streams returns the counts as soon as their version exceeds since, or when ctx ends. With
// since 0 it returns at once.
func (s *Simulator) Streams(ctx context.Context, since int64) Counts {
	if since <= 0 {
		return s.journal.Counts()
	}
	return s.journal.Wait(ctx, since)
}

// Reset clears requests, totals, counts of faults, the prompt cache, and every script that
// was put.
func (s *Simulator) Reset() {
	s.scripts.Reset()
	s.faults.Reset()
	s.seen.Reset()
	s.cache.Reset()
	s.journal.Reset("")
}

func (s *Simulator) listScripts(w http.ResponseWriter, r *http.Request) {
	s.writeJSON(w, r, http.StatusOK, map[string]any{"scripts": s.scripts.List()})
}

func (s *Simulator) putScript(w http.ResponseWriter, r *http.Request) {
	source, err := io.ReadAll(http.MaxBytesReader(w, r.Body, script.MaxBytes+1))
	if err != nil {
		s.fail(w, r, http.StatusRequestEntityTooLarge, "a script is at most "+strconv.Itoa(script.MaxBytes)+" bytes long")
		return
	}
	name := r.PathValue("name")
	sc, err := s.scripts.Put(name, source)
	switch {
	case errors.Is(err, script.ErrFull):
		s.fail(w, r, http.StatusInsufficientStorage, err.Error())
	case err != nil:
		s.fail(w, r, http.StatusBadRequest, err.Error())
	default:
		s.writeJSON(w, r, http.StatusOK, map[string]any{"name": sc.Name, "rules": len(sc.Rules), "model": script.ModelPrefix + sc.Name})
	}
}

func (s *Simulator) removeScript(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("name")
	if !s.scripts.Remove(name) {
		s.fail(w, r, http.StatusNotFound, "there is no script "+strconv.Quote(name))
		return
	}
	s.journal.Reset(name)
	w.WriteHeader(http.StatusNoContent)
}

func (s *Simulator) requests(w http.ResponseWriter, r *http.Request) {
	limit, err := queryInt(r, "limit")
	if err != nil {
		s.fail(w, r, http.StatusBadRequest, err.Error())
		return
	}
	list := s.journal.Requests(r.URL.Query().Get("script"), int(limit))
	s.writeJSON(w, r, http.StatusOK, map[string]any{"requests": list})
}

// streams returns the counts: at once, or with since=<version> when they have changed, at the
// latest after wait=<duration>.
func (s *Simulator) streams(w http.ResponseWriter, r *http.Request) {
	since, err := queryInt(r, "since")
	if err != nil {
		s.fail(w, r, http.StatusBadRequest, err.Error())
		return
	}
	wait := maxWait
	if q := r.URL.Query().Get("wait"); q != "" {
		if wait, err = time.ParseDuration(q); err != nil || wait < 0 || wait > maxWait {
			s.fail(w, r, http.StatusBadRequest, "wait is a duration up to "+maxWait.String()+", such as 5s")
			return
		}
	}
	ctx, leave, _ := s.enter(r.Context())
	defer leave()
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	s.writeJSON(w, r, http.StatusOK, s.Streams(ctx, since))
}

// reset clears everything, or with script=<name> the state of one script.
func (s *Simulator) reset(w http.ResponseWriter, r *http.Request) {
	if name := r.URL.Query().Get("script"); name != "" {
		s.journal.Reset(name)
	} else {
		s.Reset()
	}
	w.WriteHeader(http.StatusNoContent)
}

func queryInt(r *http.Request, name string) (int64, error) {
	q := r.URL.Query().Get(name)
	if q == "" {
		return 0, nil
	}
	n, err := strconv.ParseInt(q, 10, 64)
	if err != nil || n < 0 {
		return 0, errors.New(name + " must be a whole number that is not negative")
	}
	return n, nil
}

func (s *Simulator) fail(w http.ResponseWriter, r *http.Request, status int, message string) {
	s.writeJSON(w, r, status, map[string]string{"error": message})
}

func (s *Simulator) writeJSON(w http.ResponseWriter, r *http.Request, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	if err := json.NewEncoder(w).Encode(v); err != nil {
		s.log.DebugContext(r.Context(), "answer not written", "path", r.URL.Path, "error", err)
	}
}
