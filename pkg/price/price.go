// Package price knows what models cost, for all services that count it. Prices are
// data: prices.json comes with the product, and an operator's own file of the same form
// goes before it.
//
//	{"prices": [
//	  {"provider": "anthropic", "model": "claude-sonnet-4*", "input": 3, "output": 15, "cache_read": 0.3, "cache_write": 3.75}
//	]}
//
// Amounts are US dollars for a million tokens. A * at the end of a model stands for any
// rest. The operator's file is looked at first; within a file the model itself counts
// before a pattern, and a longer pattern before a shorter one. cache_read and cache_write
// are tokens of the prompt that were read from the provider's cache or written to it;
// without them these cost as much as others. A model that is in neither file works all
// the same: its price is unknown, which is not nothing.
//
// Reading is strict: an unknown field or a wrong value is an error that names file, line
// and field. A List never changes and is safe for concurrent use.
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

// Price is what a million tokens cost, in US dollars.
type Price struct {
	Input, Output         float64
	CacheRead, CacheWrite float64
}

// Tokens are what a provider counted for one call.
type Tokens struct {
	// Input is all of the prompt; CacheRead and CacheWrite are parts of it.
	Input, CacheRead, CacheWrite int64
	Output                       int64
}

// Cost returns what a call cost in millionths of a dollar.
func (p Price) Cost(t Tokens) int64 {
	plain := max(t.Input-t.CacheRead-t.CacheWrite, 0)
	return int64(math.Round(float64(plain)*p.Input + float64(t.CacheRead)*p.CacheRead +
		float64(t.CacheWrite)*p.CacheWrite + float64(t.Output)*p.Output))
}

// List is prices by provider and model. The zero List knows none.
type List struct{ tables []table } // the first that knows a model counts

// table is one file.
type table struct {
	exact    map[model]Price
	families map[string][]family // by provider, longest prefix first
}

type model struct{ provider, name string }

// family is the models whose names begin alike.
type family struct {
	prefix string
	price  Price
}

// Of returns the price of a model; false where it is unknown.
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

// Cost returns what a call of a model cost in millionths of a dollar; false where the
// price is unknown.
func (l *List) Cost(provider, name string, t Tokens) (micros int64, known bool) {
	p, known := l.Of(provider, name)
	return p.Cost(t), known
}

//go:embed prices.json
var shipped []byte

// maxFile bounds an operator's file.
const maxFile = 1 << 20

// Load returns the shipped prices behind those of the operator's file at path; an empty
// path stands for none.
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
