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

// series are medians of jobs that do nothing, by margay bench launch.
var series = []measurements{
	{"2026-11-26", []Point{{1, ms(18.7)}, {8, ms(65.9)}, {64, ms(485)}}},
}

// All are the numbers of nodes of the page.
const All = "1,8,64,256,1000,10000,100000,1000000"

// OneHost is a machine whose nodes share the two processors of a host.
var OneHost = Setting{
	Name: "one host", Processors: 2, AtOnce: 64, Silence: silence,
	Network: Network{Latency: 15 * time.Microsecond},
	Work: Work{
		Launcher: ms(8), Client: ms(0.05), Job: ms(0.2), Commit: ms(0.3), Offer: 50, Message: ms(0.05), State: 200, Look: 50,
		Node: ms(0.1), Prepare: ms(3), Start: ms(3), End: ms(3), Forget: ms(3), Spare: ms(12),
		Pass: 400, Unpack: 500, Piece: ms(0.05),
	},
}

// Cluster is a machine whose nodes, serve and margay run have processors of their own.
var Cluster = Setting{
	Name: "cluster", Silence: silence,
	Network: Network{Latency: 15 * time.Microsecond, Gap: time.Microsecond, PerByte: 320, Again: 200 * time.Millisecond},
	Work:    OneHost.Work,
}
