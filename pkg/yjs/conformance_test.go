package yjs_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"testing"

	"signalbox.dev/pkg/yjs"
)

// oracle is a Node process with npm yjs.
type oracle struct {
	mu  sync.Mutex
	in  *bufio.Writer
	out *bufio.Reader
}

const benchDir = "../../bench/yjs"

func startOracle(t *testing.T) *oracle {
	t.Helper()
	node, err := exec.LookPath("node")
	if err != nil {
		t.Skip("node is not installed: conformance with npm yjs is not checked")
	}
	if _, err := os.Stat(filepath.Join(benchDir, "node_modules", "yjs")); err != nil {
		t.Skip("bench/yjs/node_modules is missing: run npm ci in bench/yjs to check conformance with npm yjs")
	}
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), node, "oracle.mjs")
	cmd.Dir = benchDir
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		if err := cmd.Wait(); err != nil {
			t.Logf("oracle: %v", err)
		}
	})
	return &oracle{in: bufio.NewWriter(in), out: bufio.NewReaderSize(out, 1<<20)}
}

func (o *oracle) ask(q, into any) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if err := json.NewEncoder(o.in).Encode(q); err != nil {
		return err
	}
	if err := o.in.Flush(); err != nil {
		return err
	}
	line, err := o.out.ReadBytes('\n')
	if err != nil {
		return err
	}
	var failed struct{ Error string }
	if err := json.Unmarshal(line, &failed); err == nil && failed.Error != "" {
		return fmt.Errorf("oracle: %s", failed.Error)
	}
	return json.Unmarshal(line, into)
}

// observed is the content and the encoding of a replica.
type observed struct {
	Canon, XML, Text  string
	SV, State, State2 []byte
}

func observe(d *yjs.Doc) observed {
	return observed{
		Canon: canon(d), XML: d.XMLFragment("x").String(), Text: d.Text("t").String(),
		SV: d.StateVector().Encode(), State: d.EncodeStateAsUpdate(nil), State2: d.EncodeStateAsUpdateV2(nil),
	}
}

func fresh() *yjs.Doc { return open(yjs.New(yjs.Options{ClientID: 1 << 50})) }

// open sets the types of the roots that all histories use.
func open(d *yjs.Doc) *yjs.Doc {
	d.Text("t")
	d.Map("m")
	d.Array("a")
	d.XMLFragment("x")
	return d
}

type history struct {
	Updates, Updates2                        [][]byte
	Order                                    []int
	Half                                     int
	Settled                                  bool
	Fix                                      string
	FixSV                                    []byte
	InOrder, InOrder2, Mixed, Once, Once2    observed
	Mid                                      *struct{ State, State2, SV []byte }
	Merged, Merged2, MixedMerge, MixedMerge2 []byte
	Cut, Diff, Diff2, StateDiff, StateDiff2  []byte
	SVOf, To2, To1, Snapshot, Snapshot2      []byte
}

func seeds(t *testing.T) int {
	t.Helper()
	n := 250
	if s := os.Getenv("SIGNALBOX_YJS_SEEDS"); s != "" {
		var err error
		if n, err = strconv.Atoi(s); err != nil {
			t.Fatalf("SIGNALBOX_YJS_SEEDS: %v", err)
		}
	}
	if testing.Short() {
		n = min(n, 50)
	}
	return n
}

// TestHistoriesOfNpm applies updates of npm yjs clients in every way an update may arrive, and
// compares with npm yjs byte by byte.
func TestHistoriesOfNpm(t *testing.T) {
	t.Parallel()
	o := startOracle(t)
	n, refused := seeds(t), 0
	first, _ := strconv.Atoi(os.Getenv("SIGNALBOX_YJS_FIRST"))
	for seed := first + 1; seed <= first+n; seed++ {
		var h history
		if err := o.ask(map[string]any{"cmd": "history", "seed": seed, "steps": 8 + seed%32}, &h); err != nil {
			refused++ // npm yjs could not create this history
			continue
		}
		checkHistory(t, seed, &h)
		if t.Failed() {
			t.Fatalf("seed %d (SIGNALBOX_YJS_FIRST=%d SIGNALBOX_YJS_SEEDS=1)", seed, seed-1)
		}
	}
	if refused > n/10 {
		t.Errorf("npm yjs refused %d of %d histories", refused, n)
	}
	t.Logf("%d histories, %d refused by npm yjs", n, refused)
}

func checkHistory(t *testing.T, seed int, h *history) {
	t.Helper()
	apply := func(name string, d *yjs.Doc, v2 bool, update []byte) {
		f := d.ApplyUpdate
		if v2 {
			f = d.ApplyUpdateV2
		}
		if err := f(update, nil); err != nil {
			t.Fatalf("seed %d: %s: apply: %v", seed, name, err)
		}
	}
	d := fresh()
	for _, u := range h.Updates {
		apply("in order", d, false, u)
	}
	compare(t, "in order", observe(d), h.InOrder)
	if h.Settled && canon(d) != h.Fix {
		t.Errorf("settled replicas: got %s\nwant %s", canon(d), h.Fix)
	}
	if h.Settled {
		equal(t, "state vector of settled replicas", d.StateVector().Encode(), h.FixSV)
	}
	cut, err := yjs.DecodeStateVector(h.Cut)
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "state since", d.EncodeStateAsUpdate(cut), h.StateDiff)
	equal(t, "state since, v2", d.EncodeStateAsUpdateV2(cut), h.StateDiff2)
	equal(t, "snapshot", d.Snapshot().Encode(), h.Snapshot)
	equal(t, "snapshot, v2", d.Snapshot().EncodeV2(), h.Snapshot2)
	for _, v2 := range []bool{false, true} {
		s, err := yjs.DecodeSnapshot(h.Snapshot)
		if v2 {
			s, err = yjs.DecodeSnapshotV2(h.Snapshot2)
		}
		if err != nil || !s.Equal(d.Snapshot()) {
			t.Errorf("decoded snapshot (v2 %v) differs: %v", v2, err)
		}
	}

	d = fresh()
	for _, u := range h.Updates2 {
		apply("in order, v2", d, true, u)
	}
	compare(t, "in order, v2", observe(d), h.InOrder2)

	d = fresh()
	for k, i := range h.Order {
		apply("mixed", d, false, h.Updates[i])
		if k == h.Half && !ahead(t, d, h.Mid.SV) {
			equal(t, "half of mixed", d.EncodeStateAsUpdate(nil), h.Mid.State)
			equal(t, "half of mixed, v2", d.EncodeStateAsUpdateV2(nil), h.Mid.State2)
			equal(t, "state vector of half of mixed", d.StateVector().Encode(), h.Mid.SV)
		}
	}
	if ahead(t, d, h.Mixed.SV) {
		if got := observe(d); got.Canon != h.InOrder.Canon || !bytes.Equal(got.SV, h.InOrder.SV) {
			t.Errorf("mixed, where npm yjs is stuck: content\n got %s\nwant %s", got.Canon, h.InOrder.Canon)
		}
	} else {
		compare(t, "mixed", observe(d), h.Mixed)
	}
	if d.Pending() {
		t.Errorf("mixed: structs are pending after all have arrived")
	}
	checkFree(t, h, cut)

	d = fresh()
	apply("merged", d, false, h.Merged)
	compare(t, "merged", observe(d), h.Once)
	d = fresh()
	apply("merged, v2", d, true, h.Merged2)
	compare(t, "merged, v2", observe(d), h.Once2)
}

// ahead reports whether a replica has integrated structs that npm yjs keeps pending needlessly:
// it records only some of their dependencies, and sometimes waits forever.
func ahead(t *testing.T, d *yjs.Doc, theirs []byte) bool {
	t.Helper()
	sv, err := yjs.DecodeStateVector(theirs)
	if err != nil {
		t.Fatal(err)
	}
	have, more := d.StateVector(), false
	for id, clock := range sv {
		if have[id] < clock {
			t.Errorf("client %d: %d integrated, npm yjs has %d", id, have[id], clock)
		}
	}
	for id, clock := range have {
		more = more || clock > sv[id]
	}
	return more
}

// checkFree checks the functions that work without a document.
func checkFree(t *testing.T, h *history, cut yjs.StateVector) {
	t.Helper()
	must := func(b []byte, err error) []byte {
		if err != nil {
			t.Errorf("unexpected error: %v", err)
		}
		return b
	}
	var mixed, mixed2 [][]byte
	for _, i := range h.Order {
		mixed = append(mixed, h.Updates[i])
		mixed2 = append(mixed2, h.Updates2[i])
	}
	equal(t, "MergeUpdates", must(yjs.MergeUpdates(h.Updates)), h.Merged)
	equal(t, "MergeUpdatesV2", must(yjs.MergeUpdatesV2(h.Updates2)), h.Merged2)
	equal(t, "MergeUpdates(mixed)", must(yjs.MergeUpdates(mixed)), h.MixedMerge)
	equal(t, "MergeUpdatesV2(mixed)", must(yjs.MergeUpdatesV2(mixed2)), h.MixedMerge2)
	equal(t, "DiffUpdate", must(yjs.DiffUpdate(h.Merged, cut)), h.Diff)
	equal(t, "DiffUpdateV2", must(yjs.DiffUpdateV2(h.Merged2, cut)), h.Diff2)
	equal(t, "ConvertV1ToV2", must(yjs.ConvertV1ToV2(h.Merged)), h.To2)
	equal(t, "ConvertV2ToV1", must(yjs.ConvertV2ToV1(h.Merged2)), h.To1)
	sv, err := yjs.StateVectorFromUpdate(h.MixedMerge)
	equal(t, "StateVectorFromUpdate", must(sv.Encode(), err), h.SVOf)
}

func equal(t *testing.T, name string, got, want []byte) {
	t.Helper()
	if !bytes.Equal(got, want) {
		t.Errorf("%s:\n got %s\nwant %s", name, base64.StdEncoding.EncodeToString(got), base64.StdEncoding.EncodeToString(want))
	}
}

func compare(t *testing.T, name string, got, want observed) {
	t.Helper()
	if got.Canon != want.Canon {
		t.Errorf("%s: content\n got %s\nwant %s", name, got.Canon, want.Canon)
	}
	if got.XML != want.XML {
		t.Errorf("%s: XML\n got %q\nwant %q", name, got.XML, want.XML)
	}
	if got.Text != want.Text {
		t.Errorf("%s: text\n got %q\nwant %q", name, got.Text, want.Text)
	}
	equal(t, name+": state vector", got.SV, want.SV)
	equal(t, name+": state", got.State, want.State)
	equal(t, name+": state v2", got.State2, want.State2)
}

// TestNpmWaitsForever applies a history out of order after which npm yjs waits forever, though
// it has received everything.
func TestNpmWaitsForever(t *testing.T) {
	t.Parallel()
	o := startOracle(t)
	const seed = 304_767
	var h history
	if err := o.ask(map[string]any{"cmd": "history", "seed": seed, "steps": 8 + seed%32}, &h); err != nil {
		t.Fatal(err)
	}
	if bytes.Equal(h.Mixed.SV, h.InOrder.SV) {
		t.Errorf("npm yjs no longer waits: seed %d shows nothing", seed)
	}
	checkHistory(t, seed, &h)
}
