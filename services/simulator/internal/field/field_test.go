package field_test

import (
	"testing"

	"signalbox.dev/services/simulator/internal/field"
)

func TestRead(t *testing.T) {
	t.Parallel()
	o, err := field.Parse("", []byte(`{"n":1,"s":"a","z":null,"l":[1,2],"o":{}}`))
	if err != nil {
		t.Fatal(err)
	}
	n, s := 7, "old"
	if err := field.Read(o, "", "n", "a number", &n); err != nil || n != 1 {
		t.Errorf("n = %d, %v, want 1", n, err)
	}
	if err := field.Read(o, "", "z", "a string", &s); err != nil || s != "old" {
		t.Errorf("a null field = %q, %v, want it left alone", s, err)
	}
	err = field.Read(o, "a.0", "n", "a string", &s)
	if err == nil || err.Error() != "a.0.n: expected a string" {
		t.Errorf("a wrong type = %v, want its path", err)
	}
	if l, err := o.List("", "l"); err != nil || len(l) != 2 {
		t.Errorf("l = %v, %v, want two elements", l, err)
	}
	if !o.Has("n") || o.Has("z") || o.Has("x") {
		t.Error("Has is wrong about n, z or x")
	}
	if got := o.Extra([]string{"n", "o", "z"}); got != "l" {
		t.Errorf("Extra = %q, want l", got)
	}
	for in, want := range map[string]string{`{`: "the request body is not valid JSON", `[]`: "expected an object", `null`: "expected an object"} {
		if _, err := field.Parse("", []byte(in)); err == nil || err.Error() != want {
			t.Errorf("Parse(%s) = %v, want %q", in, err, want)
		}
	}
}
