package sim

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"margay/cluster/control"
	"margay/cluster/records"
	"margay/internal/check"
	"margay/internal/tree"
)

func simulate(t *testing.T, s Setting, j Job) Result {
	t.Helper()
	r, err := Run(s, j)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// lossy is a cluster that loses one message of a hundred.
func lossy() Setting {
	s := Cluster
	s.Network.Loss = 10_000
	return s
}

// Two runs with the same seed are the same, and with another seed other messages are lost.
func TestDeterminism(t *testing.T) {
	seed := check.Seed(t)
	for _, s := range []Setting{OneHost, lossy()} {
		j := Job{Nodes: 300, Seed: seed, Spares: true}
		first := simulate(t, s, j)
		if again := simulate(t, s, j); again != first {
			t.Errorf("%s: %+v, and then %+v", s.Name, first, again)
		}
		j.Seed++
		if other := simulate(t, s, j); s.Network.Loss > 0 && (other == first || first.Lost == 0) {
			t.Errorf("%s: another seed gives %+v, too", s.Name, other)
		}
	}
}

// Each rank ends once, by the product's own account of records, whatever the network loses.
func TestConservation(t *testing.T) {
	const nodes, each = 200, 3
	for _, s := range []Setting{OneHost, Cluster, lossy()} {
		relay, ended := records.NewRelay(), make(map[uint32]int)
		messages := 0
		r := simulate(t, s, Job{Nodes: nodes, Each: each, Seed: check.Seed(t), Spares: true, report: func(m *control.Record) {
			messages++
			passes, fresh := relay.Take(m)
			if !passes || fresh == nil {
				t.Fatalf("record %d of node%d does not pass", m.Seq, m.Node)
			}
			for end := range records.Each(fresh) {
				ended[end.Rank]++
			}
		}})
		for rank := range uint32(nodes * each) {
			if ended[rank] != 1 {
				t.Errorf("%s: rank %d has ended %d times", s.Name, rank, ended[rank])
			}
		}
		if r.Ended != nodes*each || len(ended) != r.Ended || messages != nodes {
			t.Errorf("%s: %d ends of %d ranks, in %d messages", s.Name, r.Ended, len(ended), messages)
		}
		if sent := int64(nodes * 7); r.AtServe != sent || r.Messages != sent { // three requests with answers, and the ends
			t.Errorf("%s: serve has %d of %d messages, not %d", s.Name, r.AtServe, r.Messages, sent)
		}
	}
}

// In a tree, each rank ends once as well, and serve has messages of its children only.
func TestTree(t *testing.T) {
	for _, fanout := range []tree.Fanout{1, 3, 64} {
		for _, nodes := range []int{1, 2, 7, 65, 300} {
			for _, s := range []Setting{OneHost, lossy()} {
				r := simulate(t, s, Job{Nodes: nodes, Each: 2, Fanout: fanout, Spares: true})
				below := int64(min(nodes, int(fanout)))
				// Ends of ranks may overtake answers to the request to start, which then do not
				// count.
				if all := int64(7 * nodes); r.Ended != 2*nodes || r.AtServe > 7*below || r.Messages > all || s.Network.Loss == 0 && (r.AtServe < 7*below || r.Messages < all) {
					t.Errorf("%s, fan-out %d, %d nodes: %+v", s.Name, fanout, nodes, r)
				}
			}
		}
	}
}

// The time of a star grows with the number of nodes, and the time of a tree with its logarithm.
func TestGrowth(t *testing.T) {
	s := Cluster
	s.Work.Offer, s.Work.State, s.Work.Look, s.Work.Save = 0, 0, 0, 0 // they grow with the nodes in any case
	times := func(fanout tree.Fanout) (times []time.Duration) {
		for nodes := 1 << 6; nodes <= 1<<12; nodes *= 8 {
			times = append(times, simulate(t, s, Job{Nodes: nodes, Fanout: fanout, Spares: true}).Done)
		}
		return times
	}
	star, logarithmic := times(0), times(8)
	first, second := star[1]-star[0], star[2]-star[1]
	if ratio := float64(second) / float64(first); ratio < 7.5 || ratio > 8.5 {
		t.Errorf("with eight times as many nodes each, a star takes %v: %v and %v more", star, first, second)
	}
	first, second = logarithmic[1]-logarithmic[0], logarithmic[2]-logarithmic[1]
	if first <= 0 || second <= 0 || second > 2*first {
		t.Errorf("with eight times as many nodes each, a tree takes %v: %v and %v more", logarithmic, first, second)
	}
}

// A node that dies before the ranks have started costs its silence and another launch, and one that
// dies later costs the job. Nothing waits for ever, and no rank of a dead node counts.
func TestDeaths(t *testing.T) {
	for _, s := range []Setting{OneHost, Cluster} {
		for _, fanout := range []tree.Fanout{0, 3} {
			j := Job{Nodes: 40, Fanout: fanout, Spares: true, Deaths: []Death{{40, time.Hour}}}
			well := simulate(t, s, j)
			for _, at := range []time.Duration{0, well.Prepared / 3, well.Prepared * 9 / 10, (well.Prepared + well.Done) / 2, well.Done} {
				for _, node := range []uint32{0, 1, 20, 39, 40} {
					j.Deaths = []Death{{node, at}}
					r := simulate(t, s, j)
					switch {
					case node < 40 && at < well.Prepared && !r.Failed && r.Launches != 2:
						t.Errorf("%s, fan-out %d: node%d dies at %v without effect: %+v", s.Name, fanout, node, at, r)
					case r == (Result{}) || r.Free < r.Done:
						t.Errorf("%s, fan-out %d: node%d dies at %v: %+v", s.Name, fanout, node, at, r)
					case node == 40: // it has no part in the job
						if r.Launches != 1 || r.Failed || r.Done != well.Done {
							t.Errorf("%s, fan-out %d: node%d dies at %v, and %+v becomes %+v", s.Name, fanout, node, at, well, r)
						}
					case r.Failed:
						if r.Launches > 1 || at == 0 || r.Done < at+s.Silence(40) {
							t.Errorf("%s, fan-out %d: the job fails since node%d dies at %v: %+v", s.Name, fanout, node, at, r)
						}
					case r.Ended != 40 || r.Launches > 2 || r.Launches == 2 && r.Done < at+s.Silence(40):
						t.Errorf("%s, fan-out %d: node%d dies at %v: %+v", s.Name, fanout, node, at, r)
					}
				}
			}
			j.Deaths = []Death{{3, 0}, {4, 0}, {40, 1}}
			if r := simulate(t, s, j); r.Ended != 40 || r.Failed || r.Launches < 2 {
				t.Errorf("%s, fan-out %d: three nodes die: %+v", s.Name, fanout, r)
			}
		}
	}
}

// At whatever time a death is noticed, the job comes to an end: it does not begin again after its
// end.
func TestNoticed(t *testing.T) {
	s := Cluster
	for _, fanout := range []tree.Fanout{0, 8} {
		well := simulate(t, Cluster, Job{Nodes: 20, Fanout: fanout, Spares: true, Deaths: []Death{{20, time.Hour}}})
		for at := time.Duration(0); at < well.Free+time.Millisecond; at += 300 * time.Microsecond {
			s.Silence = func(int) time.Duration { return 0 }
			r := simulate(t, s, Job{Nodes: 20, Fanout: fanout, Spares: true, Deaths: []Death{{7, at}}})
			if r.Failed && r.Launches > 1 || !r.Failed && r.Ended != 20 || at >= well.Done && r.Launches > 1 {
				t.Errorf("fan-out %d: node7 dies at %v: %+v", fanout, at, r)
			}
		}
	}
}

// A node that dies when its ranks have ended, while other ranks run, costs the job nothing.
// Before its ranks have ended, it costs the job.
func TestReported(t *testing.T) {
	s := Cluster
	s.Silence = func(int) time.Duration { return 0 }
	well := simulate(t, s, Job{Nodes: 100, Spares: true, Deaths: []Death{{100, time.Hour}}})
	for _, at := range []time.Duration{well.Started, well.Done - 1} {
		r := simulate(t, s, Job{Nodes: 100, Spares: true, Deaths: []Death{{0, at}}})
		if r.Failed || r.Launches != 1 || r.Ended != 100 || r.Done != well.Done {
			t.Errorf("node0 dies at %v, and %+v becomes %+v", at, well, r)
		}
	}
	if r := simulate(t, s, Job{Nodes: 100, Spares: true, Deaths: []Death{{0, well.Prepared + 14*time.Millisecond}, {99, well.Prepared + 15*time.Millisecond}}}); !r.Failed || r.Free < r.Done {
		t.Errorf("the last node dies before its ranks have ended: %+v", r)
	}
}

// A hundred thousand nodes take less than a second or two.
func TestLarge(t *testing.T) {
	r := simulate(t, Cluster, Job{Nodes: 100_000, Spares: true})
	if r.Ended != 100_000 || r.Events < 700_000 {
		t.Errorf("%+v", r)
	}
}

// A job that does not fit is refused by the product's allocator.
func TestRefused(t *testing.T) {
	if r, err := Run(Cluster, Job{}); err == nil {
		t.Errorf("a job on no node: %+v", r)
	}
}

// On one host, nodes start job inits ahead of the next job after a launch: a second job finds them.
func TestSpares(t *testing.T) {
	with := simulate(t, OneHost, Job{Nodes: 8, Spares: true})
	without := simulate(t, OneHost, Job{Nodes: 8})
	if with.Done+OneHost.Work.Spare > without.Done {
		t.Errorf("with job inits started ahead a job takes %v, without %v", with.Done, without.Done)
	}
}

// Files come to all nodes in the same time by the two ways to compute it.
func TestLoad(t *testing.T) {
	for _, fanout := range []tree.Fanout{1, 2, 3, 8} {
		for _, nodes := range []int{1, 2, 3, 10, 100, 300} {
			for _, bytes := range []int{1, pieceBytes, 3*pieceBytes + 1, 12 << 20} {
				for _, s := range []Setting{Cluster, slowRoot()} {
					l := Load{nodes, bytes, fanout}
					if computed, simulated := l.Time(s), l.Simulate(s); computed != simulated {
						t.Errorf("%+v: %v, and by events %v", l, computed, simulated)
					}
				}
			}
		}
	}
}

// slowRoot is a cluster whose nodes are slower than margay run, so that it waits for the first
// node.
func slowRoot() Setting {
	s := Cluster
	s.Work.Unpack *= 50
	return s
}

// A fit takes as long as it was fitted to.
func TestFit(t *testing.T) {
	for _, want := range [][2]time.Duration{{20 * time.Millisecond, 70 * time.Millisecond}, {50 * time.Millisecond, 150 * time.Millisecond}} {
		s, err := Fit(OneHost, want[0], want[1])
		if err != nil {
			t.Fatal(err)
		}
		for i, nodes := range []int{1, 8} {
			if off := simulate(t, s, Job{Nodes: nodes, Spares: true}).Done - want[i]; off.Abs() > want[i]/1000 {
				t.Errorf("fitted to %v, %d nodes take %v more", want, nodes, off)
			}
		}
	}
}

// The work of the quiet host and of the cluster is the one fitted to measured times.
func TestQuiet(t *testing.T) {
	host := OneHost
	host.Work = work
	fitted, err := Fit(host, series[0].at(1), series[0].at(8))
	if err != nil {
		t.Fatal(err)
	}
	for i, c := range [][2]time.Duration{
		{fitted.Work.Launcher, quiet.Launcher}, {fitted.Work.Message, quiet.Message}, {fitted.Work.Prepare, quiet.Prepare}, {fitted.Work.Start, quiet.Start},
		{fitted.Work.End, quiet.End}, {fitted.Work.Forget, quiet.Forget}, {fitted.Work.Spare, quiet.Spare},
		{time.Duration(fitted.Work.Unpack), time.Duration(quiet.Unpack)},
	} {
		if off := (c[0] - c[1]).Abs(); off > c[0]/100 {
			t.Errorf("constant %d is %v, not %v", i, c[1], c[0])
		}
	}
}

// Eight nodes cannot take more than eight times as long as one.
func TestNoFit(t *testing.T) {
	if s, err := Fit(OneHost, 50*time.Millisecond, 500*time.Millisecond); err == nil {
		t.Errorf("%+v", s)
	}
}

// The constants of the product that the models repeat are still the same.
func TestRepeated(t *testing.T) {
	for _, c := range []struct{ path, line string }{
		{"cluster/launch/stream.go", fmt.Sprintf("const filePiece = %d << 10\n", pieceBytes>>10)},
		{"cluster/machine/spec.go", fmt.Sprintf("const askedEach = %d\n", OneHost.AtOnce/OneHost.Processors)},
		{"cluster/machine/spec.go", fmt.Sprintf("t.Space, t.Each = %d*time.Millisecond,", hostedSpace)},
		{"cluster/serve/save.go", fmt.Sprintf("const recordPause = %d * time.Millisecond\n", recordPause/time.Millisecond)},
	} {
		source, err := os.ReadFile("../../" + c.path)
		if err != nil || !strings.Contains(string(source), c.line) {
			t.Errorf("%s lacks %q: %v", c.path, c.line, err)
		}
	}
}

// Requests have the size of the product's layouts: they do not grow with the nodes.
func TestRequestBytes(t *testing.T) {
	var sizes []int
	for _, nodes := range []int{2, 1000, 70_000} {
		places := slices.Repeat([]*control.Place{nil}, nodes)
		for i := range places {
			places[i] = &control.Place{Rank: uint32(i), Node: uint32(i), Core: 1}
		}
		bytes, err := requestBytes(places)
		if err != nil {
			t.Fatal(err)
		}
		sizes = append(sizes, bytes)
	}
	if sizes[0] < 500 || sizes[2] > sizes[0]+10 {
		t.Errorf("requests of jobs of 2, 1,000 and 70,000 nodes have %v bytes", sizes)
	}
}
