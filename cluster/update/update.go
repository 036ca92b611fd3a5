// Package update decides how nodes of a machine start another image while its jobs go on. It has no
// input and output: serve passes in what it sees of the nodes, carries out the work of each stage,
// and reports the results.
//
//	waiting --> draining --> loading --> starting --> keeping --> done
//	   |            |           |            |            |
//	  left     failed, left   failed     resetting      failed
//	                                         |
//	                                       failed
//
// A node that runs the image already begins with keeping, or is done: no job has to end for it.
//
// A node gets its turn when fewer than Rolling nodes are between waiting and an end. It fails if it
// ends, refuses the image, comes up with another one, leaves the machine, or takes longer than the
// time-out for a stage, without the time before serve was started. One that stays down, or is
// refused, is reset at once. Only draining takes as long as the node's jobs. The first failure
// stops the update: nodes that wait are left as they are, and others go on. The same happens when
// an operator resumes a node that is draining.
//
// The state is a control.Update, which serve records before it acts on it. All work can be done
// again, so a serve that is started again goes on from the recorded state. What a node does follows
// from the boot that it registers with: the one that was recorded before the image was loaded has
// not started the image, and any other one either runs the image or never will. An image that ends
// is accepted if the node boots that image anyway: the next boot has it then.
package update

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"margay/cluster/control"
)

// The stages, without the prefix of the protocol.
const (
	Waiting   = control.UpdateStage_UPDATE_WAITING
	Draining  = control.UpdateStage_UPDATE_DRAINING
	Loading   = control.UpdateStage_UPDATE_LOADING
	Starting  = control.UpdateStage_UPDATE_STARTING
	Keeping   = control.UpdateStage_UPDATE_KEEPING
	Done      = control.UpdateStage_UPDATE_DONE
	Resetting = control.UpdateStage_UPDATE_RESETTING
	Failed    = control.UpdateStage_UPDATE_FAILED
	Left      = control.UpdateStage_UPDATE_LEFT
)

// Sight is what serve sees of a node.
type Sight struct {
	Up      bool   // it is connected, and can be given requests
	Gone    bool   // it is dead, off or refused
	Down    bool   // it has ended, and stays down until an order starts it
	Refused bool   // it cannot join: it speaks another version of the protocol
	Off     bool   // it stays off until an operator switches it on
	Left    bool   // it has left the machine
	Why     string // it is not up
	Busy    bool   // it has a job
	Boot    string // its last boot, by which it registered
	Image   string // that this boot reported

	Trouble string // why the work of its stage has failed, and is tried again; empty: it has not
}

// Begin sets the stage with which a node begins an update that is ordered, given the name of the
// image that it runs; empty: the one that the machine was made with.
func Begin(n *control.NodeUpdate, m *control.UpdateNodes, runs string) {
	const has = "it has the image already"
	switch {
	case m.Force:
	case runs == m.Image: // the record of what it boots may lack that
		n.Stage, n.Reason = Keeping, has
	case runs == "" && m.First:
		n.Stage, n.Reason = Done, has
	}
}

// Ended reports whether a stage is the last one of a node.
func Ended(s control.UpdateStage) bool { return s == Done || s == Failed || s == Left }

// Active reports whether a node is out of service for the update.
func Active(s control.UpdateStage) bool { return s != Waiting && !Ended(s) }

// Held reports whether a node can only be resumed when its stage has ended: it has got the image.
func Held(s control.UpdateStage) bool { return Active(s) && s != Draining }

// Running reports whether an update has nodes that have not ended.
func Running(u *control.Update) bool {
	for _, n := range u.GetNodes() {
		if !Ended(n.Stage) {
			return true
		}
	}
	return false
}

// Advance returns the state that follows from what serve, which was started at a time, sees now. It
// does not change u.
func Advance(u *control.Update, started, now time.Time, see func(*control.NodeUpdate) Sight) *control.Update {
	next := proto.CloneOf(u)
	active := 0
	for _, n := range next.Nodes {
		s := step{next, n, now}
		s.advance(see(n), started)
		if Active(n.Stage) {
			active++
		}
	}
	for _, n := range next.Nodes {
		s := step{next, n, now}
		switch {
		case n.Stage != Waiting:
		case next.Stopped != "":
			s.enter(Left)
		case active < int(max(next.Rolling, 1)):
			s.enter(Draining)
			active++
		}
	}
	return next
}

// Worked returns the state after the work of the stage that a node was in: loading it, resetting
// it, or keeping its image. An error ends the update of the node. A result that comes too late,
// when the node has another stage or the update is another one, changes nothing.
func Worked(u *control.Update, worked *control.NodeUpdate, err error, now time.Time) *control.Update {
	next := proto.CloneOf(u)
	for _, n := range next.Nodes {
		if !At(n, worked) {
			continue
		}
		s := step{next, n, now}
		switch stage := n.Stage; {
		case err != nil && stage == Resetting:
			s.fail("%s; it could not be reset: %v", n.Reason, err)
		case err != nil:
			s.fail("%v", err)
		case stage == Loading:
			s.enter(Starting)
		case stage == Keeping:
			s.enter(Done)
		}
	}
	return next
}

// Drained returns the state after an operator has taken nodes out of service: they stay out of
// service after the update.
func Drained(u *control.Update, nodes []uint32) *control.Update {
	return changed(u, nodes, func(s step) { s.n.Out = true })
}

// Resumed returns the state after an operator, by, has taken nodes into service. One that waits
// gets its turn as if it had never been out of service. One that drains leaves the update, and
// stops it. An operator must not resume a node in another active stage (Held).
func Resumed(u *control.Update, nodes []uint32, by string, now time.Time) *control.Update {
	return changed(u, nodes, func(s step) {
		s.n.Out, s.now = false, now
		if s.n.Stage == Draining {
			s.enter(Left)
			s.stop("node%d was taken into service by %s", s.n.Node, by)
		}
	})
}

// changed returns a state with a change of the nodes whose update has not ended.
func changed(u *control.Update, nodes []uint32, change func(step)) *control.Update {
	next := proto.CloneOf(u)
	for _, n := range next.GetNodes() {
		if slices.Contains(nodes, n.Node) && !Ended(n.Stage) {
			change(step{u: next, n: n})
		}
	}
	return next
}

// At reports whether a node is still in the stage that it was in.
func At(n, was *control.NodeUpdate) bool {
	return n.Node == was.Node && n.Stage == was.Stage && n.SinceNs == was.SinceNs
}

// step is one node of a state that is being computed.
type step struct {
	u   *control.Update
	n   *control.NodeUpdate
	now time.Time
}

func (s step) enter(stage control.UpdateStage) { s.n.Stage, s.n.SinceNs = stage, s.now.UnixNano() }

// fail ends the update of the node. Nodes that wait get no turn.
func (s step) fail(format string, args ...any) {
	s.enter(Failed)
	s.n.Reason = fmt.Sprintf(format, args...)
	s.stop("node%d: %s", s.n.Node, s.n.Reason)
}

// stop stops the update, unless it has stopped.
func (s step) stop(format string, args ...any) {
	if s.u.Stopped == "" {
		s.u.Stopped = fmt.Sprintf(format, args...)
	}
}

func (s step) timeout() time.Duration { return time.Duration(s.u.TimeoutMs) * time.Millisecond }

// late reports whether the stage takes too long. started is when serve was started.
func (s step) late(started time.Time) bool {
	since := time.Unix(0, s.n.SinceNs)
	if started.After(since) {
		since = started
	}
	return s.now.Sub(since) > s.timeout()
}

func (s step) advance(sight Sight, started time.Time) {
	back := sight.Up && sight.Boot != s.n.Boot // since the image was loaded
	if Active(s.n.Stage) && sight.Left {
		s.fail("it has left the machine")
		return
	}
	switch s.n.Stage {
	case Draining:
		switch {
		case sight.Busy:
		case sight.Up:
			s.n.Boot = sight.Boot
			s.enter(Loading)
		case sight.Gone:
			s.fail("it is not up: %s", sight.Why)
		}
	case Loading, Starting:
		switch {
		case back && sight.Image == s.u.Image:
			s.enter(Keeping)
		case back && s.n.Stage == Loading:
			s.fail("the node has booted its old image instead of image %s", s.u.Image)
		case back:
			s.fail("image %s ended before it was up, and the node has booted its old one", s.u.Image)
		case sight.Down:
			s.n.Reason = fmt.Sprintf("image %s ended before it was up and left the node down", s.u.Image)
			s.enter(Resetting)
		case sight.Refused && s.n.Stage == Starting:
			s.n.Reason = fmt.Sprintf("image %s cannot join: %s", s.u.Image, sight.Why)
			s.enter(Resetting)
		case s.late(started):
			s.n.Reason = fmt.Sprintf("image %s was not up within %v%s", s.u.Image, s.timeout(), because(sight.Trouble))
			s.enter(Resetting)
		}
	case Resetting:
		switch {
		case back:
			s.fail("%s, and the node has booted its old one", s.n.Reason)
		case sight.Off:
			s.fail("%s; it could not be reset: %s", s.n.Reason, sight.Why)
		case s.late(started):
			s.fail("%s, and its old one not either%s", s.n.Reason, because(cmp.Or(sight.Trouble, sight.end())))
		}
	case Keeping:
		switch {
		case back && sight.Image != s.u.Image:
			s.fail("image %s ended after it had joined", s.u.Image)
		case s.late(started):
			s.fail("it is up with image %s, but its next boot takes the old one: the holder did not record the new one within %v%s", s.u.Image, s.timeout(), because(sight.Trouble))
		}
	}
}

// end returns why a node is gone, without the lines of its console; empty: it is not gone.
func (s Sight) end() string {
	why, _, _ := strings.Cut(s.Why, "\n")
	if !s.Gone {
		return ""
	}
	return why
}

// because returns a reason that follows a sentence, if there is one.
func because(why string) string {
	if why == "" {
		return ""
	}
	return ": " + why
}
