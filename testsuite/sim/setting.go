package sim

import (
	"time"

	"margay/cluster/serve"
)

// Network is a network as LogGP describes it. The overhead of a message at its two ends is work of
// their processors (Work.Message, Work.Node).
type Network struct {
	Latency time.Duration // L, from the end of sending to the arrival of the first byte
	Gap     time.Duration // g, between two messages of one sender
	PerByte Picoseconds   // G, for each byte of a long message, at its sender's link
	Loss    uint32        // messages of a million that are lost; each is sent again
	Again   time.Duration // until a lost message is sent again; twice as long each time after that
}

// Picoseconds is a time for each byte.
type Picoseconds int64

// of returns the time for some bytes.
func (p Picoseconds) of(bytes int) time.Duration {
	return time.Duration(int64(p) * int64(bytes) / 1000)
}

// Work is how long processors work on the parts of a job.
type Work struct {
	Launcher time.Duration // margay run: its start, the files, the connection, its end
	Client   time.Duration // margay run: the records of one node
	Job      time.Duration // serve: a job, whatever its size
	Commit   time.Duration // serve: until a change is on disk; there are four in each job
	Offer    time.Duration // serve: a node in the choice of nodes
	Message  time.Duration // serve: a message to a node or from it
	State    time.Duration // serve, and margay run: a rank in a message that lists all ranks
	Save     time.Duration // serve: a rank in the record of a job, each time that this is written
	Look     time.Duration // serve: a look at a node, when it looks for one that has not ended

	Node    time.Duration // node kernel: a message that it passes on in a tree
	Prepare time.Duration // the parts of a job on a node, with their messages
	Start   time.Duration
	End     time.Duration
	Forget  time.Duration
	Spare   time.Duration // the next job init

	Pass   Picoseconds // node: files to or from another node, for each of the two
	Unpack Picoseconds // node: files of its own
	Piece  time.Duration
}

// Setting is a machine: its network, its processors, and the work that a job makes for them.
type Setting struct {
	Name       string
	Network    Network
	Work       Work
	Processors int // of the one host that serve, the nodes and margay run share; 0: each has its own
	Others     int // works of other programs that this host always has: its load
	AtOnce     int // nodes that serve asks at a time; 0: all
	Silence    func(nodes int) time.Duration
}

// silence is how long serve takes to notice a dead node; with hosted nodes, heartbeats are rarer.
func silence(nodes int) time.Duration { return serve.Timing{}.Silence(nodes) }
func hostedSilence(nodes int) time.Duration {
	return serve.Timing{Space: hostedSpace * time.Millisecond}.Silence(nodes)
}

// hostedSpace is how far apart heartbeats of hosted nodes are, in ms.
const hostedSpace = 4
