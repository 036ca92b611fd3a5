package serve

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"margay/cluster/control"
	"margay/kernel/abi/slot"
)

func TestAllocate(t *testing.T) {
	offers := []offer{{node: 0, total: 2, cores: []uint32{2}}, {node: 1, total: 2}, {node: 3, total: 3, cores: []uint32{1, 2, 4}}}
	for _, c := range []struct {
		name string
		shape
		want string // node.core of each rank
	}{
		{"one", shape{ranks: 1}, "0.2"},
		{"two", shape{ranks: 2}, "0.2 3.1"},
		{"all", shape{ranks: 4}, "0.2 3.1 3.2 3.4"},
		{"too many", shape{ranks: 5}, ""},
		{"one a node", shape{ranks: 2, perNode: 1}, "0.2 3.1"},
		{"two a node", shape{ranks: 2, perNode: 2}, "3.1 3.2"},
		{"the rest comes after the others", shape{ranks: 3, perNode: 2}, ""},
		{"more than cores", shape{ranks: 7, perNode: 7}, "3.1 3.1 3.1 3.2 3.2 3.4 3.4"},
		{"more than can share", shape{ranks: 25, perNode: 25}, ""},
		{"as many as can share", shape{ranks: 24, perNode: 24}, "3.1 3.1 3.1 3.1 3.1 3.1 3.1 3.1 3.2 3.2 3.2 3.2 3.2 3.2 3.2 3.2 3.4 3.4 3.4 3.4 3.4 3.4 3.4 3.4"},
		{"two a core", shape{ranks: 5, perCore: 2}, "0.2 0.2 3.1 3.1 3.2"},
		{"two a core is not enough", shape{ranks: 9, perCore: 2}, ""},
		{"two a core, three a node", shape{ranks: 3, perNode: 3, perCore: 2}, "3.1 3.1 3.2"},
		{"two cores each", shape{ranks: 1, each: 2}, "3.1+2"},
		{"three cores each", shape{ranks: 1, each: 3}, "3.1+2+4"},
		{"more cores each than a node has free", shape{ranks: 1, each: 4}, ""},
		{"one core each", shape{ranks: 2, each: 1}, "0.2 3.1"},
		{"two of two cores each", shape{ranks: 2, each: 2}, ""},
		{"spread over two nodes", shape{ranks: 3, nodes: 2}, "0.2 3.1 3.2"},
		{"spread evenly", shape{ranks: 2, nodes: 2}, "0.2 3.1"},
		{"spread over too many", shape{ranks: 3, nodes: 3}, ""},
		{"spread over one", shape{ranks: 3, nodes: 1}, "3.1 3.2 3.4"},
		{"spread with shared cores", shape{ranks: 4, nodes: 2, perCore: 2}, "0.2 0.2 3.1 3.1"},
		{"only one node", shape{ranks: 2, only: []uint32{3}}, "3.1 3.2"},
		{"without one node", shape{ranks: 1, without: []uint32{0}}, "3.1"},
		{"one node is enough on one core", shape{ranks: 4, perNode: 2, perCore: 2}, "0.2 0.2 3.1 3.1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var got []string
			for i, p := range allocate(offers, c.shape) {
				if p.Rank != uint32(i) {
					t.Errorf("rank %d is the %d-th", p.Rank, i)
				}
				text := fmt.Sprintf("%d.%d", p.Node, p.Core)
				for _, core := range p.More {
					text += fmt.Sprintf("+%d", core)
				}
				got = append(got, text)
			}
			if text := strings.Join(got, " "); text != c.want {
				t.Errorf("placed at %q, want %q", text, c.want)
			}
		})
	}
	if places := allocate(nil, shape{ranks: 1}); places != nil {
		t.Errorf("a rank is placed on nothing: %v", places)
	}
}

// For any shape, no core gets more ranks than can share one, and no node gets more than its share.
func TestAllocateBounds(t *testing.T) {
	for ranks := 1; ranks < 40; ranks++ {
		for perNode := range 20 {
			for perCore := range slot.MaxTasks + 1 {
				s := shape{ranks: ranks, perNode: perNode, perCore: perCore}
				onCore, onNode := make(map[[2]uint32]int), make(map[uint32]int)
				places := allocate([]offer{{0, 2, []uint32{1, 2}}, {1, 3, []uint32{1, 3}}, {2, 4, []uint32{1, 2, 3, 4}}}, s)
				for _, p := range places {
					onCore[[2]uint32{p.Node, p.Core}]++
					onNode[p.Node]++
				}
				most := slot.MaxTasks
				if perCore > 0 {
					most = perCore
				} else if perNode == 0 {
					most = 1
				}
				for core, n := range onCore {
					if n > most {
						t.Errorf("%+v: %d ranks on core %d of node %d", s, n, core[1], core[0])
					}
				}
				for node, n := range onNode {
					if perNode > 0 && n > perNode {
						t.Errorf("%+v: %d ranks on node %d", s, n, node)
					}
				}
				if places != nil && len(places) != ranks {
					t.Errorf("%+v: %d ranks were placed", s, len(places))
				}
			}
		}
	}
}

// A request for unavailable resources is answered with the available ones and the way out.
func TestNoRoom(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 2)
		c := m.client()
		for _, tc := range []struct {
			ranks, perNode, perCore uint32
			code                    control.Code
			says                    string
		}{
			{5, 0, 0, control.Code_CODE_NO_ROOM, "5 ranks need 5 application cores, but 4 of 4 are free; --ppn or --per-core N lets ranks share a core: at most 32 ranks with --per-core 8 (2 of 2 nodes are up; see margay nodes)"},
			{9, 0, 2, control.Code_CODE_NO_ROOM, "9 ranks need 5 application cores, but 4 of 4 are free; --ppn or --per-core N lets ranks share a core: at most 32 ranks with --per-core 8 (2 of 2"},
			{99, 0, 0, control.Code_CODE_NO_ROOM, "99 ranks need 99 application cores, but 4 of 4 are free; --ppn or --per-core N lets ranks share a core: at most 32 ranks with --per-core 8 (2 of 2"},
			{99, 0, 8, control.Code_CODE_NO_ROOM, "99 ranks need 13 application cores, but 4 of 4 are free: 32 ranks at most (2 of 2"},
			{3, 1, 0, control.Code_CODE_NO_ROOM, "3 ranks, 1 on a node, need 3 nodes with 1 free application core each, but 2 of 2 have that; a larger --ppn needs fewer nodes"},
			{5, 2, 1, control.Code_CODE_NO_ROOM, "5 ranks, 2 on a node, need 3 nodes with 2 free application cores each, but 2 of 2 have that; a larger --ppn needs fewer nodes"},
			{17, 17, 0, control.Code_CODE_NO_ROOM, "a node of 2 application cores takes 16 ranks at most, 8 on a core, not 17"},
			{5, 5, 2, control.Code_CODE_NO_ROOM, "a node of 2 application cores takes 4 ranks at most, 2 on a core, not 5"},
			{9, 0, 9, control.Code_CODE_BAD_REQUEST, "9 ranks cannot share a core, 8 can"},
		} {
			s := spec(tc.ranks)
			s.PerNode, s.PerCore = tc.perNode, tc.perCore
			if _, err := c.ask(&control.RunRequest{Spec: s}); !errors.Is(err, &control.Failure{Code: tc.code}) || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("%+v: %v", tc, err)
			}
		}
		for _, tc := range []struct {
			ranks, nodes, each uint32
			says               string
		}{
			{3, 3, 0, "3 ranks, spread over 3 nodes, need 1 free core on each, but only 2 nodes can be used: node0 has 2 of 2 free, node1 has 2 of 2 free (2 of 2"},
			{6, 2, 0, "6 ranks, spread over 2 nodes, need 3 free cores on each, but node0 has 2 of 2 free, node1 has 2 of 2 free (2 of 2"},
			{1, 0, 3, "1 rank of 3 cores does not fit (the cores of a rank are on one node): node0 has 2 of 2 free, node1 has 2 of 2 free (2 of 2"},
			{3, 0, 2, "3 ranks of 2 cores each do not fit (the cores of a rank are on one node): node0 has 2 of 2 free, node1 has 2 of 2 free (2 of 2"},
		} {
			s := spec(tc.ranks)
			s.Nodes, s.CoresEach = tc.nodes, tc.each
			c.refused(&control.RunRequest{Spec: s}, control.Code_CODE_NO_ROOM, tc.says)
		}
		s := spec(6)
		s.PerNode = 4
		must[*control.RunReply](c, &control.RunRequest{Spec: s})
		shared := []string{"1:[0 1] 2:[2 3] ", "1:[4] 2:[5] "}
		for node, want := range shared {
			text := ""
			for _, core := range c.node(uint32(node)).Cores {
				text += fmt.Sprintf("%d:%v ", core.Core, core.Ranks)
			}
			if text != want {
				t.Errorf("node%d has %s, want %s", node, text, want)
			}
		}
	})
}

// Cores of nodes that are not up, taken cores and cores of another architecture are not allocated.
func TestPlacement(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := newMachine(t, 5)
		m.played[1].arch = "pdp11"
		for _, i := range []int{0, 1, 2, 3} {
			m.played[i].connect()
		}
		c := m.client()
		first := c.run(spec(1))
		m.played[2].silence()
		time.Sleep(3 * time.Second)
		reply := must[*control.RunReply](c, &control.RunRequest{Spec: spec(3)})
		if want := []*control.Place{{Rank: 0, Node: 0, Core: 2}, {Rank: 1, Node: 3, Core: 1}, {Rank: 2, Node: 3, Core: 2}}; !samePlaces(reply.Places, want) {
			t.Errorf("placed at %v", reply.Places)
		}
		_, err := c.ask(&control.RunRequest{Spec: spec(1)})
		want := "1 rank needs 1 application core, but 0 of 4 are free; jobs 1, 2 have the others, and jobs do not share cores (3 of 5 nodes are up; see margay nodes)"
		if !errors.Is(err, &control.Failure{Code: control.Code_CODE_NO_ROOM}) || err.Error() != want {
			t.Errorf("a full machine says %v", err)
		}
		must[*control.Done](c, &control.Kill{Job: first, Force: true})
		take[*control.JobState](&c.recorder)
		if reply := must[*control.RunReply](c, &control.RunRequest{Spec: spec(1)}); !samePlaces(reply.Places, []*control.Place{{Core: 1}}) {
			t.Errorf("the core of a job that has ended is not used again: %v", reply.Places)
		}
		other := spec(1)
		other.Arch = "pdp11"
		if reply := must[*control.RunReply](c, &control.RunRequest{Spec: other}); !samePlaces(reply.Places, []*control.Place{{Node: 1, Core: 1}}) {
			t.Errorf("placed at %v", reply.Places)
		}
		if _, err := c.ask(&control.RunRequest{Spec: spec(0)}); !errors.Is(err, &control.Failure{Code: control.Code_CODE_BAD_REQUEST}) {
			t.Errorf("a job without ranks: %v", err)
		}
		if _, err := c.ask(&control.RunRequest{}); !errors.Is(err, &control.Failure{Code: control.Code_CODE_BAD_REQUEST}) {
			t.Errorf("a request without a job: %v", err)
		}
	})
}

func TestWrongArchitecture(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 1)
		c := m.client()
		other := spec(1)
		other.Arch = "pdp11"
		_, err := c.ask(&control.RunRequest{Spec: other})
		want := "/bin/true is for pdp11, but the nodes of machine m are " + m.played[0].arch
		if !errors.Is(err, &control.Failure{Code: control.Code_CODE_NOT_EXECUTABLE}) || err.Error() != want {
			t.Errorf("error %v", err)
		}
	})
}
