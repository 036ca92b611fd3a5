package serve

import (
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"margay/cluster/control"
)

// signal sends a signal to one rank of a job, or to all. It returns the nodes that are away; their
// ranks do not get the signal. The caller holds Server.mu.
func (s *Server) signal(j *job, rank int, sig unix.Signal) (away []uint32) {
	switch {
	case !j.spec.Allocation:
		away = s.signalRanks(j, rank, sig)
	case j.client != nil: // its command is there
		_ = j.client.Send(&control.Signal{Job: j.number, Rank: control.None, Signal: int32(sig)})
	}
	if rank != control.None {
		return away
	}
	if slices.Contains(endings, sig) {
		j.asked = time.Now()
	}
	if halts(sig) {
		j.halt = sig
		s.saveRunning(j)
		if j.spec.Hold && sig == unix.SIGCONT {
			j.tellClient() // it may wait for Enter
		}
		return nil
	}
	if j.stopped() && slices.Contains(wakening, sig) {
		s.signal(j, rank, unix.SIGCONT)
	}
	return away
}

// signalRanks is signal for a job that has ranks on nodes, without what serve notes of it.
func (s *Server) signalRanks(j *job, rank int, sig unix.Signal) (away []uint32) {
	told := make(map[uint32]bool)
	for i, r := range j.ranks {
		if (rank == control.None || rank == i) && r.exit == nil && !told[r.place.Node] {
			told[r.place.Node] = rank == control.None
			n, m := s.nodes[r.place.Node], &control.Signal{Job: j.number, Rank: int32(rank), Signal: int32(sig)}
			waiting, starts := j.unstarted[n.number]
			if (starts || j.phase == control.JobPhase_JOB_PREPARED) && !(rank == control.None && halts(sig)) {
				waiting = slices.DeleteFunc(waiting, func(w *control.Signal) bool { return w.Rank == m.Rank && w.Signal == m.Signal })
				j.unstarted[n.number] = append(waiting[max(0, len(waiting)+1-mostWaiting):], m)
				continue
			}
			if n.conn == nil {
				away = append(away, n.number)
			}
			n.send(m)
		}
	}
	return away
}

// mostWaiting bounds the signals that wait for a node to start its ranks, or to be back. Older ones
// are dropped: Linux has 64 signals, but a client may send any numbers.
const mostWaiting = 64

// missed is a signal that some nodes have yet to be sent, because they were away.
type missed struct {
	signal *control.Signal
	nodes  int    // how many
	sent   func() // called when there are none left
}

// sentOne notes that one node fewer has yet to be sent the signal.
func (m *missed) sentOne() {
	if m.nodes--; m.nodes == 0 {
		m.sent()
	}
}

// signalAndKeep is signal for one that must not be lost: nodes that are away are sent it when they
// are back. It calls sent when all have been sent the signal, or there is no such job. If serve is
// killed before, the client sends the signal again.
func (s *Server) signalAndKeep(m *control.Signal, sent func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	j := s.jobs[m.Job]
	if j == nil {
		sent()
		return
	}
	away := s.signal(j, int(m.Rank), unix.Signal(m.Signal))
	if len(away) == 0 {
		sent()
		return
	}
	kept := &missed{m, len(away), sent}
	for _, node := range away {
		list := j.missed[node]
		same := slices.IndexFunc(list, func(o *missed) bool { return o.signal.Rank == m.Rank && o.signal.Signal == m.Signal })
		if same >= 0 || len(list) == mostWaiting {
			drop := max(same, 0)
			list[drop].sentOne()
			list = slices.Delete(list, drop, drop+1)
		}
		j.missed[node] = append(list, kept)
	}
}

// halts reports whether a signal stops or continues a job. haltOn sends it to nodes that have
// missed it.
func halts(sig unix.Signal) bool { return sig == unix.SIGSTOP || sig == unix.SIGCONT }

// startedOn sends a node whose ranks have started the signals that had to wait for that, or for the
// node: a node ignores one for ranks that it has not started. The caller holds Server.mu.
func (s *Server) startedOn(n *node, j *job) {
	for _, m := range j.unstarted[n.number] {
		n.send(m)
	}
	delete(j.unstarted, n.number)
	for _, m := range j.missed[n.number] {
		n.send(m.signal)
		m.sentOne()
	}
	delete(j.missed, n.number)
}

// wakening lists the signals that also continue a stopped job, as a shell's kill does: the job
// could not end otherwise.
var wakening = []unix.Signal{unix.SIGHUP, unix.SIGTERM}

// stopped reports whether all ranks were stopped.
func (j *job) stopped() bool { return j.halt == unix.SIGSTOP }

// haltOn sends a node that has registered the stop or continue signal that it may have missed while
// it was away. The caller holds Server.mu.
func (s *Server) haltOn(n *node, j *job) {
	if j.halt != 0 && !j.endedOn(n.number) {
		n.send(&control.Signal{Job: j.number, Rank: control.None, Signal: int32(j.halt)})
	}
}

// endings lists the signals with which users end programs.
var endings = []unix.Signal{unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGKILL, unix.SIGTERM}
