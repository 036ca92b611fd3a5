package boot

import (
	"margay/kernel/abi/id"
)

// Stage is how far the boot of a node has got. Later stages are greater.
type Stage int

// The stages.
const (
	Unpowered     Stage = iota + 1 // it is not switched on yet
	Asked                          // it has sent a DHCP request that was not granted
	Leased                         // its firmware has an address and the location of iPXE
	Loader                         // its firmware fetches iPXE
	Entered                        // its iPXE has an address and the location of the script
	Queued                         // it waits until other nodes have fetched the image
	Script                         // it fetches the script
	Configuration                  // it fetches its configuration
	Kernel                         // it fetches the kernel
	Image                          // it fetches the node image
)

// Status is a stage and how much of it is done.
type Status struct {
	Stage   Stage
	Percent int    // of the file that the stage fetches, 0 to 100
	Why     string // Asked: the reason; Queued: how many nodes come before it
}

var fetched = map[Stage]string{Loader: "iPXE", Script: "the script", Configuration: "its configuration", Kernel: "the kernel", Image: "the node image"}

// String describes the stage for a user, as something that a node does. It does not have the
// percentage.
func (s Status) String() string {
	switch {
	case s.Stage == Unpowered:
		return "it waits for its turn to be switched on"
	case s.Stage == Asked:
		return "its DHCP request was refused: " + s.Why
	case s.Stage == Queued:
		return "it waits while others fetch the node image; " + s.Why + " wait before it"
	case s.Stage == Leased:
		return "its firmware has got an address"
	case s.Stage == Entered:
		return "it has got its address"
	case s.Stage == Image && s.Percent == 100:
		return "it has fetched everything, and starts Linux"
	case fetched[s.Stage] != "":
		return "it fetches " + fetched[s.Stage]
	}
	return "it has not begun"
}

// over reports whether a node has fetched everything.
func (s Status) over() bool { return s.Stage == Image && s.Percent >= 100 }

// begins reports whether the stage is one of DHCP.
func (s Stage) begins() bool { return s == Asked || s == Leased || s == Entered }

// percentStep is the least difference in percent that is news.
const percentStep = 10

// Progress remembers how far the boot of each node has got. It is not safe for concurrent use.
type Progress struct{ nodes map[id.Node]Status }

// NewProgress returns a Progress of nodes that have not begun.
func NewProgress() *Progress { return &Progress{make(map[id.Node]Status)} }

// Starting forgets a node, because it starts again.
func (p *Progress) Starting(node id.Node) { delete(p.nodes, node) }

// Reached records a status of a node, and returns whether it is worth a report. A node that begins
// with DHCP again boots again. Otherwise an earlier stage
// is old news: a client may fetch a part of a file twice.
func (p *Progress) Reached(node id.Node, s Status) bool {
	s.Percent = min(max(s.Percent, 0), 100)
	was := p.nodes[node]
	switch {
	case s.Stage == was.Stage && (s.Stage.begins() || s.Stage == Queued):
		if s == was {
			return false
		}
	case s.Stage == was.Stage:
		if s.Percent < was.Percent+percentStep && (s.Percent < 100 || was.Percent == 100) {
			return false
		}
	case s.Stage < was.Stage && !s.Stage.begins():
		return false
	}
	p.nodes[node] = s
	return true
}
