package prosemirror

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// A content expression lists the children that a node may have: names of nodes or groups in
// sequence, alternatives (a | b), and the repetitions *, +, ?, {n}, {n,} and {n,m}. It is
// compiled to a finite automaton whose edges are node types. The empty expression accepts no
// children.

// match is a state of that automaton.
type match struct {
	end   bool   // the content may end here
	edges []edge // in the order of the expression, which is the order of preference
}

type edge struct {
	typ  *nodeType
	next *match
}

func (m *match) next(t *nodeType) *match {
	for _, e := range m.edges {
		if e.typ == t {
			return e.next
		}
	}
	return nil
}

// Limits of content expressions, far above what real schemas need.
const (
	maxExprRepeat = 100
	maxExprStates = 1000
)

// expr is a node of the parsed expression.
type expr struct {
	op       byte // 't' type, ',' sequence, '|' choice, '{' repeat
	typ      *nodeType
	sub      []*expr
	min, max int // max -1: unbounded
}

type exprParser struct {
	s    *Schema
	toks []string
	pos  int
}

// compileContent returns the start state of src.
func (s *Schema) compileContent(src string) (*match, error) {
	p := &exprParser{s: s, toks: exprTokens(src)}
	if len(p.toks) == 0 {
		return &match{end: true}, nil
	}
	e, err := p.choice()
	if err != nil {
		return nil, err
	}
	if p.pos < len(p.toks) {
		return nil, fmt.Errorf("unexpected %q", p.toks[p.pos])
	}
	return (&nfa{}).compile(e)
}

func exprTokens(src string) []string {
	var toks []string
	for i := 0; i < len(src); {
		switch c := src[i]; {
		case c == ' ' || c == '\t' || c == '\n':
			i++
		case isAlnum(c) || c == '_':
			j := i
			for j < len(src) && (isAlnum(src[j]) || src[j] == '_' || src[j] == '-') {
				j++
			}
			toks, i = append(toks, src[i:j]), j
		default:
			toks, i = append(toks, src[i:i+1]), i+1
		}
	}
	return toks
}

func (p *exprParser) peek() string {
	if p.pos < len(p.toks) {
		return p.toks[p.pos]
	}
	return ""
}

func (p *exprParser) eat(t string) bool {
	if p.peek() != t {
		return false
	}
	p.pos++
	return true
}

func (p *exprParser) choice() (*expr, error) {
	var sub []*expr
	for {
		e, err := p.sequence()
		if err != nil {
			return nil, err
		}
		sub = append(sub, e)
		if !p.eat("|") {
			return &expr{op: '|', sub: sub}, nil
		}
	}
}

func (p *exprParser) sequence() (*expr, error) {
	var sub []*expr
	for t := p.peek(); t != "" && t != ")" && t != "|"; t = p.peek() {
		e, err := p.repeated()
		if err != nil {
			return nil, err
		}
		sub = append(sub, e)
	}
	if len(sub) == 0 {
		return nil, fmt.Errorf("nothing before %q", p.peek())
	}
	return &expr{op: ',', sub: sub}, nil
}

func (p *exprParser) repeated() (*expr, error) {
	e, err := p.atom()
	if err != nil {
		return nil, err
	}
	for {
		rep := &expr{op: '{', sub: []*expr{e}, max: -1}
		switch {
		case p.eat("*"):
		case p.eat("+"):
			rep.min = 1
		case p.eat("?"):
			rep.max = 1
		case p.eat("{"):
			if err := p.bounds(rep); err != nil {
				return nil, err
			}
		default:
			return e, nil
		}
		e = rep
	}
}

func (p *exprParser) bounds(e *expr) error {
	n, err := p.number()
	if err != nil {
		return err
	}
	e.min, e.max = n, n
	if p.eat(",") {
		e.max = -1
		if p.peek() != "}" {
			if e.max, err = p.number(); err != nil {
				return err
			}
			if e.max < e.min {
				return fmt.Errorf("{%d,%d} has its bounds reversed", e.min, e.max)
			}
		}
	}
	if !p.eat("}") {
		return fmt.Errorf("missing }")
	}
	return nil
}

func (p *exprParser) number() (int, error) {
	n, err := strconv.Atoi(p.peek())
	if err != nil || n < 0 || n > maxExprRepeat {
		return 0, fmt.Errorf("%q is not a number up to %d", p.peek(), maxExprRepeat)
	}
	p.pos++
	return n, nil
}

func (p *exprParser) atom() (*expr, error) {
	if p.eat("(") {
		e, err := p.choice()
		if err == nil && !p.eat(")") {
			err = fmt.Errorf("missing )")
		}
		return e, err
	}
	name := p.peek()
	p.pos++
	if t := p.s.types[name]; t != nil {
		return &expr{op: 't', typ: t}, nil
	}
	var sub []*expr
	for _, t := range p.s.order {
		if slices.Contains(strings.Fields(t.spec.Group), name) {
			sub = append(sub, &expr{op: 't', typ: t})
		}
	}
	if len(sub) == 0 {
		return nil, fmt.Errorf("no node or group is named %q", name)
	}
	return &expr{op: '|', sub: sub}, nil
}

// nfa is a nondeterministic automaton; state 0 is the accepting state.
type nfa struct {
	edges [][]nfaEdge
}

type nfaEdge struct {
	typ *nodeType // nil: an epsilon edge
	to  int
}

func (a *nfa) add(edges ...nfaEdge) int {
	a.edges = append(a.edges, edges)
	return len(a.edges) - 1
}

func (a *nfa) compile(e *expr) (*match, error) {
	a.add()
	start := a.build(e, 0)
	if len(a.edges) > maxExprStates {
		return nil, fmt.Errorf("the expression is too large")
	}
	made := map[string]*match{}
	m := a.state(a.closure([]int{start}), made)
	if len(made) > maxExprStates {
		return nil, fmt.Errorf("the expression is too large")
	}
	return m, nil
}

// build adds the states for e and returns the first; e continues at next.
func (a *nfa) build(e *expr, next int) int {
	if len(a.edges) > maxExprStates {
		return next
	}
	switch e.op {
	case 't':
		return a.add(nfaEdge{e.typ, next})
	case ',':
		for _, s := range slices.Backward(e.sub) {
			next = a.build(s, next)
		}
		return next
	case '|':
		var edges []nfaEdge
		for _, s := range e.sub {
			edges = append(edges, nfaEdge{to: a.build(s, next)})
		}
		return a.add(edges...)
	}
	if e.max < 0 {
		loop := a.add()
		a.edges[loop] = []nfaEdge{{to: a.build(e.sub[0], loop)}, {to: next}}
		next = loop
	}
	for i := e.max; i > e.min; i-- {
		next = a.add(nfaEdge{to: a.build(e.sub[0], next)}, nfaEdge{to: next})
	}
	for range e.min {
		next = a.build(e.sub[0], next)
	}
	return next
}

// closure returns the states reachable over epsilon edges, in order of preference.
func (a *nfa) closure(from []int) []int {
	var out []int
	var visit func(int)
	visit = func(s int) {
		if slices.Contains(out, s) {
			return
		}
		out = append(out, s)
		for _, e := range a.edges[s] {
			if e.typ == nil {
				visit(e.to)
			}
		}
	}
	for _, s := range from {
		visit(s)
	}
	return out
}

func (a *nfa) state(set []int, made map[string]*match) *match {
	sorted := slices.Sorted(slices.Values(set))
	key := fmt.Sprint(sorted)
	if m := made[key]; m != nil || len(made) > maxExprStates {
		return m
	}
	m := &match{end: sorted[0] == 0}
	made[key] = m
	var types []*nodeType
	to := map[*nodeType][]int{}
	for _, s := range set {
		for _, e := range a.edges[s] {
			if e.typ == nil {
				continue
			}
			if to[e.typ] == nil {
				types = append(types, e.typ)
			}
			to[e.typ] = append(to[e.typ], e.to)
		}
	}
	for _, t := range types {
		m.edges = append(m.edges, edge{t, a.state(a.closure(to[t]), made)})
	}
	return m
}
