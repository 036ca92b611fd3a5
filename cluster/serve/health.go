package serve

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"margay/cluster/control"
	"margay/internal/printable"
	"margay/kernel/abi/id"
)

// watch detects silent nodes.
func (s *Server) watch(ctx context.Context) {
	every := s.config.Timing.Late / 10
	tick := time.NewTicker(every)
	defer tick.Stop()
	for last := time.Now(); ; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		now := time.Now()
		away := absence(now.Sub(last), every)
		last = now
		s.mu.Lock()
		for n := range s.members() {
			n.heard = n.heard.Add(away)
			s.judge(n, now.Sub(n.heard))
			if n.unsaved {
				s.saveNode(n)
			}
		}
		s.retire()
		s.advanceUpdate()
		for _, j := range s.jobs {
			s.catchUpClient(j)
			s.awaitRecords(j)
		}
		s.saveAgain()
		s.mu.Unlock()
	}
}

// absence returns how long serve has not run, from the time since its last check and the interval
// of checks: it was stopped, or had no CPU. Nodes do not count as silent during that time. Less
// than one interval counts as 0.
func absence(since, every time.Duration) time.Duration {
	if since < 2*every {
		return 0
	}
	return since - every
}

// judge decides what a node's silence means. The caller holds Server.mu.
func (s *Server) judge(n *node, silent time.Duration) {
	t := s.config.Timing
	switch n.health {
	case control.NodeHealth_NODE_BOOTING:
		if silent > t.Boot {
			last := ""
			if n.stage != nil {
				last = fmt.Sprintf(" after the last news of its boot (%s, %d %%)", n.stage.Stage, n.stage.Percent)
			}
			s.dead(n, fmt.Sprintf("it did not register within %v%s (machine up --boot-timeout gives a slow or busy host longer)%s", t.Boot, last, s.consoleTail(n.number)), "if it stays silent, "+s.rebooted(n))
		}
	case control.NodeHealth_NODE_UP:
		if silent > n.pace*t.Late {
			n.turn(control.NodeHealth_NODE_LATE, "it is silent"+n.panic())
			n.deeds.Printf("node%d is late: silent for %v", n.number, silent.Round(time.Millisecond))
		}
	case control.NodeHealth_NODE_LATE:
		if dead := t.deadAfter(n.pace); silent > dead {
			s.dead(n, fmt.Sprintf("it has been silent for %v%s", dead, n.panic()), "if it stays silent, "+s.rebooted(n)+"; machine up --dead-after waits longer on a busy host")
		}
	case control.NodeHealth_NODE_REFUSED:
		if silent > t.deadAfter(n.pace) {
			s.lose(n)
		}
	}
}

// rebooted explains how to reboot a node.
func (s *Server) rebooted(n *node) string {
	if n.byHand != "" {
		return fmt.Sprintf("margay node power on -m %s node%d, and a reset by hand, reboot it", s.config.Machine, n.number)
	}
	return fmt.Sprintf("margay node reboot -m %s node%d reboots it", s.config.Machine, n.number)
}

// turn changes a node's health, and the reason why it is not up. The caller holds Server.mu.
func (n *node) turn(health control.NodeHealth, reason string) {
	n.health, n.reason, n.retry, n.waits = health, reason, false, false
}

// dead removes a node from the machine and ends its jobs. The caller holds Server.mu.
func (s *Server) dead(n *node, reason, remedy string) {
	n.deeds.Printf("node%d is dead: %s", n.number, reason)
	s.part(n, control.NodeHealth_NODE_DEAD, reason, remedy)
}

// part removes a node, which is dead or off, and ends its jobs. The caller holds Server.mu.
func (s *Server) part(n *node, health control.NodeHealth, reason, remedy string) {
	n.turn(health, reason)
	n.remedy = remedy
	n.disconnect()
	s.accountedFor(n.number)
	s.roomChanged()
	s.lose(n)
}

// lose ends the jobs of a node. A job that is being launched has not run any rank, so it can be
// launched again. The caller holds Server.mu.
func (s *Server) lose(n *node) { s.loseJobs(n, n.why()) }

// loseJobs is lose for a given reason. It returns the jobs. Steps come before their allocations,
// whose end would be the reason otherwise. The caller holds Server.mu.
func (s *Server) loseJobs(n *node, why string) (jobs []uint32) {
	lose := func(j *job) {
		code := control.Code_CODE_NODE_LOST
		if j.phase == control.JobPhase_JOB_PREPARED {
			code = control.Code_CODE_LAUNCH_LOST
		}
		s.fail(j, control.Failf(code, "%s", why).At(n.number))
		jobs = append(jobs, j.number)
	}
	var allocations []*job
	for _, j := range s.jobs {
		if j.spec.Allocation && j.has(n.number) {
			allocations = append(allocations, j)
		} else if j.on(n.number) && !j.records.Complete(n.number) {
			lose(j)
		}
	}
	for _, a := range allocations {
		lose(a)
	}
	return jobs
}

// consoleLines is how many lines of a node's console an error message includes.
const consoleLines = 8

func (s *Server) consoleTail(node uint32) string {
	if s.config.Console == nil {
		return ""
	}
	lines := s.config.Console(id.Node(node), consoleLines)
	if len(lines) == 0 {
		return "; its console shows nothing"
	}
	for i, line := range lines {
		lines[i] = printable.Short(line, maxConsoleLine)
	}
	return "; the last lines of its console:\n    " + strings.Join(lines, "\n    ")
}

// nodeBoot processes the holder's report that a node's substrate has been started.
func (s *Server) nodeBoot(m *control.NodeBoot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.member(m.Node)
	if n == nil {
		return
	}
	if n.conn == nil && n.health != control.NodeHealth_NODE_LATE {
		off := n.health == control.NodeHealth_NODE_OFF
		if m.Boots <= 1 || off {
			n.reason, n.retry = "", false // otherwise they say why the node boots again
		}
		n.health, n.heard = control.NodeHealth_NODE_BOOTING, time.Now()
		if off {
			s.hinder(s.queue...)
		}
	}
	if m.Boots != n.boots { // the holder does not repeat itself
		n.firmware.panic = ""
	}
	n.boots, n.stage, n.panicked, n.started, n.power = m.Boots, nil, "", time.Now(), control.NodePower_POWER_ON
	n.byHand = m.ByHand
}

// nodePanic processes the holder's report of a panic. Other stations on the boot network can forge
// what it is based on, so it ends nothing: it explains the silence of the node.
func (s *Server) nodePanic(m *control.NodePanic) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.member(m.Node)
	if n == nil {
		return
	}
	last := n.panic()
	n.panicked = m.Reason
	n.deeds.Printf("node%d: its console says that its Linux has panicked: %s", n.number, m.Reason)
	if n.health == control.NodeHealth_NODE_LATE || n.health == control.NodeHealth_NODE_BOOTING {
		// The holder repeats the report when it connects again, and may have a new one.
		if reason := strings.TrimSuffix(n.reason, last); !strings.HasSuffix(reason, n.panic()) {
			n.reason = cmp.Or(reason, "it has not registered yet") + n.panic()
		}
	}
}

// panic is what the reason of a node's silence ends with. The caller holds Server.mu.
func (n *node) panic() string {
	if n.panicked == "" {
		return ""
	}
	return "; its console says that its Linux has panicked: " + n.panicked
}

// bootExtension bounds the time of a boot over the network, in boot time-outs: a node that starts
// over and over would never be silent. It also bounds the time until a node has registered whose
// start waits for others.
const bootExtension = 5

// nodeStage processes the holder's report on the progress of a node's boot. A node that makes
// progress is not silent.
func (s *Server) nodeStage(m *control.NodeStage) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := s.member(m.Node); n != nil && n.conn == nil && n.health == control.NodeHealth_NODE_BOOTING {
		n.stage = m
		if time.Since(n.started) < (bootExtension-1)*s.config.Timing.Boot {
			n.heard = time.Now()
		}
	}
}

// nodeExit processes the holder's report that a node's substrate has ended.
func (s *Server) nodeExit(m *control.NodeExit) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.member(m.Node)
	if n == nil {
		return
	}
	n.power, n.byHand = control.NodePower_POWER_OFF, m.ByHand
	off := n.health == control.NodeHealth_NODE_OFF
	if m.Off {
		s.switchedOff(n, m.Reason, m.Waits)
		return
	}
	reason, remedy := m.Reason, "it stays down: "+s.rebooted(n)
	if m.Retry {
		reason, remedy = reason+"; it is being restarted", ""
	} else if len(m.Console) > 0 {
		reason += "; the last lines of its console:\n    " + strings.Join(m.Console, "\n    ")
	}
	s.dead(n, reason, remedy)
	n.retry = m.Retry
	if off { // it could not be switched on
		s.hinder(s.queue...)
		s.roomChanged()
	}
}
