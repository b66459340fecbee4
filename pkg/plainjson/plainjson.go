// Package plainjson decodes JSON into one form, so that texts that differ only in spelling become
// equal values: fields have no order, the last of several with one name counts, and whole numbers
// have neither fraction nor exponent (5 for 5.0 and 0.5e1).
package plainjson

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
)

// maxNumber bounds the characters of a number. A float64 written out has fewer.
const maxNumber = 400

// ErrSyntax is wrapped by Decode's errors for text that is not one JSON value.
var ErrSyntax = errors.New("not valid JSON")

// Decode returns the value of text, with numbers as json.Number. It refuses text that is not exactly
// one value, numbers outside of float64, and very long ones, which would be slow to compute with.
func Decode(text string) (any, error) {
	d := json.NewDecoder(strings.NewReader(text))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		if errors.Is(err, io.ErrUnexpectedEOF) {
			return nil, fmt.Errorf("%w (it ends too early)", ErrSyntax)
		}
		return nil, fmt.Errorf("%w (%w)", ErrSyntax, err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%w (something follows the value)", ErrSyntax)
	}
	return plainNumbers(v)
}

func plainNumbers(v any) (any, error) {
	var err error
	switch v := v.(type) {
	case json.Number:
		return plainNumber(v)
	case []any:
		for i := range v {
			if v[i], err = plainNumbers(v[i]); err != nil {
				return nil, err
			}
		}
	case map[string]any:
		for k := range v {
			if v[k], err = plainNumbers(v[k]); err != nil {
				return nil, err
			}
		}
	}
	return v, nil
}

func plainNumber(n json.Number) (json.Number, error) {
	f, err := n.Float64()
	if err != nil || len(n) > maxNumber {
		shown := n.String()
		if len(shown) > 100 {
			shown = shown[:100] + "…"
		}
		return "", fmt.Errorf("a number is out of range: %s", shown)
	}
	if f == math.Trunc(f) && math.Abs(f) <= 1<<53 && strings.ContainsAny(n.String(), ".eE") {
		return json.Number(strconv.FormatInt(int64(f), 10)), nil
	}
	return n, nil
}
