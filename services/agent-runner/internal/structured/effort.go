package structured

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"regexp"
	"regexp/syntax"
	"strconv"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// Bounds of the work that a schema can make. Without them, a few references to one another make
// the check of an answer take for ever, and a pattern of a few bytes takes gigabytes.
const (
	// maxEffort bounds one check. That takes about a second, and an answer of 50,000 small
	// objects stays below it.
	maxEffort = 1_000_000
	// maxPattern bounds a pattern, in bytes.
	maxPattern = 1000
	// maxProgram bounds the compiled patterns of a schema, in instructions.
	maxProgram = 50_000
	// patternSteps is how many steps of a pattern count as one unit of effort.
	patternSteps = 100
	// maxExponent bounds numbers, which are compared exactly: 1e999999 has a million digits.
	maxExponent = 400
)

var (
	errEffort   = errors.New("it is too large or the schema is too complex to check it")
	errExponent = fmt.Errorf("it has a number with an exponent of more than %d", maxExponent)
)

// effort counts the work of a check. take panics with errEffort when there was too much, because
// the library cannot be interrupted otherwise.
type effort struct {
	left    int
	program int // instructions of all patterns
}

func (e *effort) take(n int) {
	if e.left -= n; e.left < 0 {
		panic(errEffort)
	}
}

// vocabulary counts each evaluation of a schema. It adds no keywords.
func (e *effort) vocabulary() *jsonschema.Vocabulary {
	return &jsonschema.Vocabulary{URL: "response:effort", Compile: func(_ *jsonschema.CompilerContext, object map[string]any) (jsonschema.SchemaExt, error) {
		c := cost{effort: e, schema: 1 + len(object)}
		for keyword, v := range object {
			switch v := v.(type) {
			case []any:
				c.schema += len(v)
			case map[string]any:
				if keyword == "patternProperties" {
					c.each = len(v)
				}
			}
		}
		return c, nil
	}}
}

// cost is the effort of one evaluation of a schema.
type cost struct {
	*effort

	schema int // of the schema itself
	each   int // for each property of the value
}

// Validate implements jsonschema.SchemaExt.
func (c cost) Validate(_ *jsonschema.ValidatorContext, v any) {
	size := 0
	switch v := v.(type) {
	case map[string]any:
		size = len(v)
	case []any:
		size = len(v)
	}
	c.take(c.schema + (1+c.each)*size)
}

// pattern is a pattern whose matches count.
type pattern struct {
	*regexp.Regexp
	*effort

	program int
}

// compile implements jsonschema.RegexpEngine.
func (e *effort) compile(text string) (jsonschema.Regexp, error) {
	if len(text) > maxPattern {
		return nil, fmt.Errorf("the pattern has %d bytes; at most %d are allowed", len(text), maxPattern)
	}
	parsed, err := syntax.Parse(text, syntax.Perl)
	if err != nil {
		return nil, err
	}
	program, err := syntax.Compile(parsed.Simplify())
	if err != nil {
		return nil, err
	}
	if e.program += len(program.Inst); e.program > maxProgram {
		return nil, errors.New("the patterns repeat too much: use smaller numbers of repetitions")
	}
	re, err := regexp.Compile(text)
	return &pattern{re, e, len(program.Inst)}, err
}

// MatchString implements jsonschema.Regexp.
func (p *pattern) MatchString(s string) bool {
	p.take(1 + len(s)*p.program/patternSteps)
	return p.Regexp.MatchString(s)
}

// checkNumbers refuses numbers that take long to compare.
func checkNumbers(v any) error {
	switch v := v.(type) {
	case map[string]any:
		for _, e := range v {
			if err := checkNumbers(e); err != nil {
				return err
			}
		}
	case []any:
		for _, e := range v {
			if err := checkNumbers(e); err != nil {
				return err
			}
		}
	case json.Number:
		if i := strings.IndexAny(string(v), "eE"); i >= 0 {
			if n, err := strconv.Atoi(string(v[i+1:])); err != nil || math.Abs(float64(n)) > maxExponent {
				return errExponent
			}
		}
	}
	return nil
}
