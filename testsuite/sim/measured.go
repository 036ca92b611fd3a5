package sim

import "time"

// Measured is a time that a real job has taken.
type Measured struct {
	Series string `json:"series"`
	Point
}

// measurements are times of one run on one machine.
type measurements struct {
	Name   string
	Others int // programs that wanted a processor of the host as well
	Points []Point
}

// at returns the time on a number of nodes, which the series must have.
func (m measurements) at(nodes int) time.Duration {
	for _, p := range m.Points {
		if p.Nodes == nodes {
			return p.Time
		}
	}
	panic("sim: a series without a job on so many nodes")
}

func ms(x float64) time.Duration { return time.Duration(x * float64(time.Millisecond)) }

// series are medians of jobs that do nothing, from the start of margay run to its end.
// docs/scale.md names the sources. One without jobs on one node goes by the constants of the one
// before it.
var series = []measurements{
	{"2026-11-26, quiet", 0, []Point{{1, ms(18.7)}, {8, ms(65.9)}, {64, ms(485)}}},
	{"2026-11-27, busy", 8, []Point{{1, ms(313.6)}, {8, ms(500.7)}, {64, ms(2286.3)}, {256, ms(6372.5)}}},
	{"2026-11-27, other load", 8, []Point{{64, ms(600)}, {250, ms(10_750)}, {500, ms(33_000)}}},
	{"2026-11-28, quiet", 0, []Point{{1, ms(11.3)}, {8, ms(30.1)}, {64, ms(251)}, {256, ms(869.9)}, {1000, ms(3131.3)}}},
}

// files are medians of the time in that 12 MB of files come to all nodes of the busy host.
var files = measurements{"12 MB, busy", 8, []Point{{1, ms(1251)}, {8, ms(2457)}, {64, ms(13_915)}}}

// All are the numbers of nodes of the page.
const All = "1,8,64,256,1000,10000,100000,1000000"

// latency is half a round trip of 8 bytes between two processes that block, over TCP
// (docs/fabric.md).
const latency = 15 * time.Microsecond

// work is the work of a job in the proportions of a busy host: Fit scales it. docs/scale.md has the
// source of each number.
var work = Work{
	Launcher: ms(5), Client: ms(0.34), Job: ms(0.02), Commit: ms(0.31), Offer: 800, Message: ms(0.34), State: 700, Save: 950, Look: 17,
	Node: ms(0.34), Prepare: ms(4), Start: ms(8.5), End: ms(3.5), Forget: ms(4), Spare: ms(17),
	Pass: 1000, Unpack: 18_500, Piece: ms(0.1),
}

// OneHost is a machine whose nodes share the two processors of a host that does nothing else.
var OneHost = Setting{Name: "one host", Processors: 2, AtOnce: 64, Silence: hostedSilence, Network: Network{Latency: latency}, Work: quiet}

// Cluster is a machine whose nodes, serve and margay run have processors of their own, as fast as
// on the quiet host, and a network of 25 Gbit/s.
var Cluster = Setting{
	Name: "cluster", Silence: silence,
	Network: Network{Latency: latency, Gap: time.Microsecond, PerByte: 320, Again: 200 * time.Millisecond},
	Work:    quiet,
}

// quiet is the work fitted to the quiet series (TestQuiet).
var quiet = Work{
	Launcher: ms(3.85), Client: ms(0.24), Job: ms(0.02), Commit: ms(0.31), Offer: 800, Message: ms(0.24), State: 700, Save: 950, Look: 17,
	Node: ms(0.24), Prepare: ms(2.82), Start: ms(5.99), End: ms(2.47), Forget: ms(2.82), Spare: ms(11.99),
	Pass: 1000, Unpack: 13_050, Piece: ms(0.1),
}

// leanMessage is the work of a message for its codec and its connection alone (BenchmarkMessage).
const leanMessage = 9 * time.Microsecond
