package pool_test

import (
	"cmp"
	"math"
	"slices"
)

// graph is a network; its maximal flow is computed with Dinic's algorithm.
type graph struct {
	out   [][]int // edges by node
	to    []int
	room  []int
	level []int
	next  []int
}

func (g *graph) node() int {
	g.out = append(g.out, nil)
	return len(g.out) - 1
}

// edge adds an edge and, at the odd index behind it, its reverse.
func (g *graph) edge(from, to, room int) {
	g.out[from], g.out[to] = append(g.out[from], len(g.to)), append(g.out[to], len(g.to)+1)
	g.to, g.room = append(g.to, to, from), append(g.room, room, 0)
}

func (g *graph) flow(source, sink int) int {
	total := 0
	for g.rank(source, sink) {
		g.next = make([]int, len(g.out))
		for {
			n := g.push(source, sink, math.MaxInt32)
			if n == 0 {
				break
			}
			total += n
		}
	}
	return total
}

// rank computes each node's distance from the source, and reports whether the sink is reached.
func (g *graph) rank(source, sink int) bool {
	g.level = make([]int, len(g.out))
	g.level[source] = 1
	queue := []int{source}
	for len(queue) > 0 {
		n := queue[0]
		queue = queue[1:]
		for _, e := range g.out[n] {
			if g.room[e] > 0 && g.level[g.to[e]] == 0 {
				g.level[g.to[e]] = g.level[n] + 1
				queue = append(queue, g.to[e])
			}
		}
	}
	return g.level[sink] > 0
}

func (g *graph) push(n, sink, most int) int {
	if n == sink {
		return most
	}
	for ; g.next[n] < len(g.out[n]); g.next[n]++ {
		e := g.out[n][g.next[n]]
		if g.room[e] == 0 || g.level[g.to[e]] != g.level[n]+1 {
			continue
		}
		if d := g.push(g.to[e], sink, min(most, g.room[e])); d > 0 {
			g.room[e] -= d
			g.room[e^1] += d
			return d
		}
	}
	return 0
}

func sorted(all []arrival) []arrival {
	out := slices.Clone(all)
	slices.SortFunc(out, func(a, b arrival) int { return cmp.Compare(a.at, b.at) })
	return out
}
