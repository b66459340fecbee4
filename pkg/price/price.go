// Package price has the prices of models. They are data: prices.json is part of the product,
// and an operator's file of the same form takes precedence.
//
//	{"prices": [
//	  {"provider": "anthropic", "model": "claude-sonnet-4*", "input": 3, "output": 15, "cache_read": 0.3, "cache_write": 3.75}
//	]}
//
// Amounts are US dollars per million tokens. A model may end in *, which matches any rest. The
// operator's file comes first. Within a file an exact name precedes a pattern, and a longer
// pattern a shorter one. cache_read and cache_write are the prices of prompt tokens that were
// read from the provider's cache or written to it; by default they cost as much as others. A
// model without a price works, and its price is unknown, not zero.
//
// Parsing is strict: an unknown field or a wrong value is an error with file, line and field. A
// List is immutable and safe for concurrent use.
package price

import (
	_ "embed"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
)

// Price is the price of a million tokens in US dollars.
type Price struct {
	Input, Output         float64
	CacheRead, CacheWrite float64
}

// Tokens are a provider's counts for one call.
type Tokens struct {
	// Input is the whole prompt; CacheRead and CacheWrite are parts of it.
	Input, CacheRead, CacheWrite int64
	Output                       int64
}

// Cost returns the cost of a call in millionths of a dollar.
func (p Price) Cost(t Tokens) int64 {
	plain := max(t.Input-t.CacheRead-t.CacheWrite, 0)
	return int64(math.Round(float64(plain)*p.Input + float64(t.CacheRead)*p.CacheRead +
		float64(t.CacheWrite)*p.CacheWrite + float64(t.Output)*p.Output))
}

// List has prices by provider and model. The zero List is empty.
type List struct{ tables []table } // in order of precedence

// table is one file.
type table struct {
	exact    map[model]Price
	families map[string][]family // by provider, longest prefix first
}

type model struct{ provider, name string }

// family is a set of models with a common prefix.
type family struct {
	prefix string
	price  Price
}

// Of returns the price of a model, and whether it is known.
func (l *List) Of(provider, name string) (Price, bool) {
	for i := range l.tables {
		t := &l.tables[i]
		if p, ok := t.exact[model{provider, name}]; ok {
			return p, true
		}
		for _, f := range t.families[provider] {
			if strings.HasPrefix(name, f.prefix) {
				return f.price, true
			}
		}
	}
	return Price{}, false
}

// Cost returns the cost of a call in millionths of a dollar, and whether the model's price is
// known.
func (l *List) Cost(provider, name string, t Tokens) (micros int64, known bool) {
	p, known := l.Of(provider, name)
	return p.Cost(t), known
}

//go:embed prices.json
var shipped []byte

// maxFile bounds an operator's file.
const maxFile = 1 << 20

// Load returns the shipped prices and those of the operator's file, unless path is empty.
func Load(path string) (*List, error) {
	l := &List{}
	if path != "" {
		text, err := read(path)
		if err != nil {
			return nil, fmt.Errorf("read prices: %w", err)
		}
		own, err := parse(filepath.Base(path), text)
		if err != nil {
			return nil, err
		}
		l.tables = append(l.tables, own)
	}
	ours, err := parse("prices.json", shipped)
	if err != nil {
		return nil, fmt.Errorf("the shipped prices: %w", err)
	}
	l.tables = append(l.tables, ours)
	return l, nil
}

func read(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // it was only read
	text, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err == nil && len(text) > maxFile {
		err = fmt.Errorf("%s is larger than %d bytes", path, maxFile)
	}
	return text, err
}
