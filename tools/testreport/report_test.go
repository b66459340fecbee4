package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// stream is what go test -json writes for a package of each kind.
const stream = `{"Action":"start","Package":"a"}
{"Action":"run","Package":"a","Test":"TestOne"}
{"Action":"output","Package":"a","Test":"TestOne","Output":"=== RUN   TestOne\n"}
{"Action":"output","Package":"a","Test":"TestOne","Output":"chatter\n"}
{"Action":"pass","Package":"a","Test":"TestOne","Elapsed":0.1}
{"Action":"output","Package":"a","Test":"TestTwo","Output":"=== RUN   TestTwo\n"}
{"Action":"output","Package":"a","Test":"TestTwo","Output":"    a_test.go:7: no openssl here\n"}
{"Action":"output","Package":"a","Test":"TestTwo","Output":"--- SKIP: TestTwo (0.00s)\n"}
{"Action":"skip","Package":"a","Test":"TestTwo"}
{"Action":"output","Package":"a","Output":"PASS\n"}
{"Action":"output","Package":"a","Output":"ok  \ta\t0.2s\n"}
{"Action":"pass","Package":"a"}
{"Action":"output","Package":"b","Output":"?   \tb\t[no test files]\n"}
{"Action":"skip","Package":"b"}
a line of something else
`

const failing = `{"Action":"output","Package":"c","Test":"TestBad","Output":"    c_test.go:1: got 1, want 2\n"}
{"Action":"output","Package":"c","Test":"TestBad","Output":"--- FAIL: TestBad (0.00s)\n"}
{"Action":"fail","Package":"c","Test":"TestBad"}
{"Action":"output","Package":"c","Test":"TestHung","Output":"panic: test timed out\n"}
{"Action":"output","Package":"c","Output":"FAIL\tc\t1s\n"}
{"Action":"fail","Package":"c"}
`

// dying is a process that ends while TestNext hangs; its panic is put down to
// TestLast, which then passes.
const dying = `{"Action":"output","Package":"e","Test":"TestNext","Output":"=== RUN   TestNext\n"}
{"Action":"output","Package":"e","Test":"TestLast","Output":"chatter\n"}
{"Action":"output","Package":"e","Test":"TestLast","Output":"panic: test timed out after 1s\n"}
{"Action":"output","Package":"e","Test":"TestLast","Output":"running tests: TestNext\n"}
{"Action":"pass","Package":"e","Test":"TestLast"}
{"Action":"output","Package":"e","Output":"FAIL\te\t1s\n"}
{"Action":"fail","Package":"e"}
`

const unbuilt = `{"ImportPath":"d","Action":"build-output","Output":"d/d.go:3:1: undefined: x\n"}
{"ImportPath":"d","Action":"build-fail"}
{"Action":"output","Package":"d","Output":"FAIL\td [build failed]\n"}
{"Action":"fail","Package":"d","FailedBuild":"d"}
`

func TestReport(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, in string
		want     []string
		not      []string
		ok       bool
	}{
		{
			"all is well", stream,
			[]string{"ok  \ta\t0.2s\n", "?   \tb\t[no test files]\n", "a line of something else\n", "skipped: a.TestTwo: a_test.go:7: no openssl here\n", "1 packages, 1 tests passed, 0 failed, 1 skipped in 3s\n"},
			[]string{"chatter", "PASS", "FAILED"},
			true,
		},
		{
			"a test fails", stream + failing,
			[]string{"got 1, want 2", "panic: test timed out", "FAIL\tc\t1s\n", "FAILED: c.TestBad\n", "FAILED: c\n", "2 packages, 1 tests passed, 1 failed, 1 skipped"},
			[]string{"chatter"},
			false,
		},
		{
			"a process dies", dying,
			[]string{"panic: test timed out", "running tests: TestNext", "FAILED: e\n"},
			nil,
			false,
		},
		{
			"a package does not build", unbuilt,
			[]string{"undefined: x", "FAIL\td [build failed]\n", "FAILED: d\n"},
			nil,
			false,
		},
		{"nothing ran", "no such tool\n", []string{"no such tool", "no test ran"}, nil, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var out strings.Builder
			r := newReport(&out)
			if err := r.read(strings.NewReader(tt.in)); err != nil {
				t.Fatal(err)
			}
			if ok := r.summary(3 * time.Second); ok != tt.ok {
				t.Errorf("summary = %v, want %v", ok, tt.ok)
			}
			for _, want := range tt.want {
				if !strings.Contains(out.String(), want) {
					t.Errorf("the report lacks %q:\n%s", want, out.String())
				}
			}
			for _, not := range tt.not {
				if strings.Contains(out.String(), not) {
					t.Errorf("the report has %q:\n%s", not, out.String())
				}
			}
		})
	}
}

// module is a package whose TestUnsteady passes the second time only, beside a test that is named.
const module = `package unsteady

import (
	"os"
	"testing"
)

func TestUnsteady(t *testing.T) {
	t.Run("part", func(t *testing.T) {
		if _, err := os.Stat("ran"); err != nil {
			os.WriteFile("ran", nil, 0o600)
			t.Error("not the first time")
		}
	})
}

func TestOther(t *testing.T) { %s }

`

const tooMany = `
func TestA(t *testing.T) { t.Error("bad") }
func TestB(t *testing.T) { t.Error("bad") }
func TestC(t *testing.T) { t.Error("bad") }
`

func TestRetries(t *testing.T) {
	for _, tt := range []struct {
		name, other string
		ok          bool
	}{
		{"alone", "", true},
		{"beside one that fails for good", `t.Error("bad")`, false},
		{"beside one that panics", `panic("bad")`, false},
		{"beside a data race", `println("WARNING: DATA RACE")`, false},
		{"beside too many", "}\n" + tooMany + "func TestEnd(*testing.T) {", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			t.Chdir(dir)
			phases := filepath.Join(dir, "phases")
			t.Setenv("PHASES", phases)
			t.Setenv("GOWORK", "off")
			for file, text := range map[string]string{"go.mod": "module unsteady.example/m\n\ngo 1.25\n", "a_test.go": fmt.Sprintf(module, tt.other)} {
				if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if ok, err := run([]string{"go", "test", "-json", "-vet=off", "./..."}); ok != tt.ok || err != nil {
				t.Errorf("run = %v, %v, want %v", ok, err, tt.ok)
			}
			if _, err := os.Stat("ran"); err != nil {
				t.Errorf("the tests did not run: %v", err)
			}
			noted, _ := os.ReadFile(phases) // there is none without an unsteady test
			if strings.Contains(string(noted), "unsteady.example/m.TestUnsteady failed, and passed alone") != tt.ok {
				t.Errorf("noted is %q", noted)
			}
		})
	}
}
