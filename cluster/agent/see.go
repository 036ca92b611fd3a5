package agent

import (
	"cmp"
	"slices"

	"margay/cluster/control"
	"margay/kernel"
	"margay/kernel/abi/id"
	"margay/kernel/extension"
	"margay/kernel/record"
)

// eventBytes is the approximate size of the events in an answer, far below control.MaxFrame.
const eventBytes = 1 << 20

func (a *Agent) readEvents(conn *control.Conn, f *control.Frame, m *control.ReadEvents) {
	b, err := a.node.Events(kernel.EventQuery{
		Reader: m.Reader, Leave: m.Leave, Job: id.Job(m.Job), Size: eventBytes,
		Cursor: record.Cursor{Generation: m.Generation, Positions: m.Positions},
	})
	if err != nil {
		conn.Answer(f, a.failure(err), nil)
		return
	}
	conn.Answer(f, &control.Events{
		NowNs: int64(record.Now()), Generation: b.Cursor.Generation, BegunNs: int64(b.Begun), KernelNs: int64(b.Made), Positions: b.Cursor.Positions,
		Events: b.Events, Lost: b.Lost, More: b.More,
	}, nil)
}

func (a *Agent) takeSamples(conn *control.Conn, f *control.Frame) {
	s, err := a.node.Sample()
	if err != nil {
		conn.Answer(f, a.failure(err), nil)
		return
	}
	out := &control.NodeSample{
		Node: a.self(), TimeNs: int64(s.Time), Recording: s.Recording,
		Extensions: a.extensions(func(x extension.Info) bool { return x.Removed == "" }),
	}
	for _, c := range s.Cores {
		out.Cores = append(out.Cores, &control.CoreSample{
			Core: uint32(c.Core), Shared: c.Shared, Interrupts: c.Interrupts, Switches: c.Switches, Asked: c.Asked, Rescues: c.Rescues,
		})
	}
	for _, r := range s.Ranks {
		out.Ranks = append(out.Ranks, &control.RankSample{
			Job: uint32(r.Job), Rank: uint32(r.Rank), Core: uint32(r.Core), Pid: int64(r.PID), Why: r.Why,
			CpuNs: int64(r.Usage.CPU), Threads: uint32(r.Usage.Threads), Voluntary: r.Usage.Voluntary, Involuntary: r.Usage.Involuntary,
			MajorFaults: r.Usage.MajorFaults, Sent: r.Sent, Arrived: r.Arrived,
		})
	}
	slices.SortFunc(out.Ranks, func(x, y *control.RankSample) int {
		return cmp.Or(cmp.Compare(x.Core, y.Core), cmp.Compare(x.Job, y.Job), cmp.Compare(x.Rank, y.Rank))
	})
	conn.Answer(f, &control.Samples{Nodes: []*control.NodeSample{out}}, nil)
}
