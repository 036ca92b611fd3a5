package serve

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"margay/cluster/control"
	"margay/internal/check"
)

// allocationSpec is an allocation of so many cores.
func allocationSpec(cores uint32) *control.JobSpec {
	s := spec(cores)
	s.Allocation = true
	return s
}

// stepSpec is a step of an allocation.
func stepSpec(allocation, ranks uint32) *control.JobSpec {
	s := spec(ranks)
	s.Step = allocation
	return s
}

// holds gets an allocation and returns its number.
func (c *playedClient) holds(s *control.JobSpec) uint32 {
	c.m.t.Helper()
	reply := must[*control.RunReply](c, &control.RunRequest{Spec: s, Exec: &control.Exec{Argv: [][]byte{[]byte("bash")}}})
	if state := one[*control.JobState](c.m.t, &c.recorder); state.Phase != control.JobPhase_JOB_RUNNING {
		c.m.t.Fatalf("the allocation has not begun: %v", state)
	}
	return reply.Job
}

// isRoomless expects that a job is refused because of its cores, with this text in the reason.
func isRoomless(t *testing.T, c *playedClient, s *control.JobSpec, why string) {
	t.Helper()
	if _, err := c.ask(&control.RunRequest{Spec: s}); !errors.Is(err, &control.Failure{Code: control.Code_CODE_NO_ROOM}) || !strings.Contains(err.Error(), why) {
		t.Errorf("%v, and the reason should say %q", err, why)
	}
}

// The cores of an allocation are for its steps, one after the other and several at a time, and for
// no other job. Its nodes learn of the steps alone.
func TestAllocation(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m, l := withLedger(t, 2)
		c, other := m.client(), m.client()
		a := c.holds(allocationSpec(3))
		for _, n := range m.played {
			none[*control.Prepare](t, &n.recorder, "a node learns of the allocation")
		}
		if free := other.freeCores(); free != 1 {
			t.Errorf("%d cores are free", free)
		}
		isRoomless(t, other, spec(2), fmt.Sprintf("job %d has the others", a))
		if j := other.summary(a); !j.Allocation || j.Command != "bash" || !slices.Equal(j.Nodes, []uint32{0, 1}) || j.Phase != control.JobPhase_JOB_RUNNING {
			t.Errorf("the allocation is listed as %v", j)
		}

		first := other.run(stepSpec(a, 2))
		if j := other.summary(first); j.Step != a || !slices.Equal(j.Nodes, []uint32{0}) {
			t.Errorf("the step is listed as %v", j)
		}
		isRoomless(t, other, stepSpec(a, 2), fmt.Sprintf("in allocation %d, 2 ranks need 2 application cores, but 1 of 3 is free", a))
		isRoomless(t, other, stepSpec(a, 2), fmt.Sprintf("step %d has the others (--wait", first))
		isRoomless(t, other, spec(2), fmt.Sprintf("job %d has the others", a))
		second := other.run(stepSpec(a, 1))
		m.played[0].exits(first, 1, 0, 0, 0)
		m.played[0].exits(first, 2, 1, 0, 0)
		other.ackAll()
		other.ended()
		if free := other.freeCores(); free != 1 {
			t.Errorf("%d cores are free after a step", free)
		}
		third := other.run(stepSpec(a, 2))

		take[*control.Forget](&m.played[0].recorder)
		c.tell(&control.EndAllocation{Job: a, Exit: &control.ExitStatus{Code: 3}})
		if state := c.ended(); state.ExitCode != 3 || state.Error != nil {
			t.Errorf("the allocation has ended as %v", state)
		}
		for _, state := range take[*control.JobState](&other.recorder) {
			if !slices.Contains([]uint32{second, third}, state.Job) || state.ExitCode != 137 || !strings.Contains(state.Error.GetText(), fmt.Sprintf("with its allocation, job %d", a)) {
				t.Errorf("a step has ended as %v", state)
			}
		}
		if f := one[*control.Forget](t, &m.played[0].recorder); f.Job != third {
			t.Errorf("node0 must forget %v", f)
		}
		if f := one[*control.Forget](t, &m.played[1].recorder); f.Job != second {
			t.Errorf("node1 must forget %v", f)
		}
		if free := other.freeCores(); free != 4 {
			t.Errorf("%d cores are free after the allocation", free)
		}
		if r := l.last(a); r == nil || r.Status != 3 {
			t.Errorf("the history has %+v", r)
		}
		if _, err := other.ask(&control.RunRequest{Spec: stepSpec(a, 1)}); err == nil || !strings.Contains(err.Error(), "it has ended, or never was") {
			t.Errorf("a step of an allocation that has ended: %v", err)
		}
		other.run(spec(4))
	})
}

// However an allocation ends, its steps end, and all cores are free. A step that has lost a node
// says so, too.
func TestAllocationEnds(t *testing.T) {
	for name, end := range map[string]struct {
		do   func(m *machine, holder, other *playedClient, a uint32)
		code int32
		why  string
		free uint32 // on the nodes that are left
	}{
		"client gone": {func(_ *machine, holder, _ *playedClient, _ uint32) { holder.conn.Close() }, 125, "its margay alloc is gone", 4},
		"left":        {func(_ *machine, holder, _ *playedClient, a uint32) { holder.tell(&control.Leave{Job: a}) }, 125, "its margay alloc is gone", 4},
		"time":        {func(*machine, *playedClient, *playedClient, uint32) { time.Sleep(time.Minute) }, exitTimeLimit, "time limit", 4},
		"killed": {func(_ *machine, _, other *playedClient, a uint32) {
			must[*control.Done](other, &control.Kill{Job: a, Force: true})
		}, 137, "killed by its user", 4},
		"node lost": {func(m *machine, _, _ *playedClient, _ uint32) { m.played[1].silence(); time.Sleep(time.Minute) }, 125, "silent", 2},
		"node evicted": {func(_ *machine, _, other *playedClient, _ uint32) {
			must[*control.NodesEvicted](other, &control.EvictNodes{Nodes: []uint32{1}})
		}, 125, "evict", 2},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				m := up(t, 2)
				c, other := m.client(), m.client()
				s := allocationSpec(4)
				s.LimitMs = 50_000
				a := c.holds(s)
				step := other.run(stepSpec(a, 3))
				end.do(m, c, other, a)
				synctest.Wait()
				for _, job := range []uint32{a, step} {
					j := other.summary(job)
					code, why := end.code, end.why
					if job == step && end.free == 4 {
						code, why = 137, "with its allocation"
					}
					if j.Phase != control.JobPhase_JOB_DONE || j.ExitCode != code || !strings.Contains(j.Error, why) || j.Allocation && j.Missing != "" {
						t.Errorf("job %d is %v", job, j)
					}
				}
				if free := other.freeCores(); free != end.free {
					t.Errorf("%d cores are free", free)
				}
			})
		})
	}
}

// A restart of serve leaves an allocation and its steps as they are. Its client comes back, or it
// ends.
func TestAllocationAfterRestart(t *testing.T) {
	for _, back := range []bool{true, false} {
		bubble(t, func(t *testing.T) {
			m := up(t, 2)
			c, other := m.client(), m.client()
			a := c.holds(allocationSpec(3))
			s := stepSpec(a, 2)
			s.Detach = true // it needs no client of its own
			step := other.run(s)
			m.restart()
			m.played[0].hosts(step, control.JobPhase_JOB_RUNNING)
			for _, n := range m.played {
				n.connect()
			}
			c, other = m.client(), m.client()
			if back {
				if state := must[*control.JobState](c, &control.Attach{Job: a}); state.Phase != control.JobPhase_JOB_RUNNING {
					t.Errorf("the allocation is %v", state)
				}
			}
			if free := other.freeCores(); free != 1 {
				t.Errorf("%d cores are free after the restart", free)
			}
			time.Sleep(time.Minute)
			if !back {
				if j := other.summary(a); j.Phase != control.JobPhase_JOB_DONE || other.summary(step).Phase != control.JobPhase_JOB_DONE || other.freeCores() != 4 {
					t.Errorf("without a client it is %v", j)
				}
				return
			}
			other.run(stepSpec(a, 1))
			isRoomless(t, other, stepSpec(a, 1), "0 of 3 are free")
			c.tell(&control.EndAllocation{Job: a})
			if state := c.ended(); state.ExitCode != 0 || other.freeCores() != 4 {
				t.Errorf("it has ended as %v", state)
			}
		})
	}
}

// A serve that is killed after the end of an allocation, and before the end of its steps, ends them
// when it is back.
func TestStepWithoutAllocationAfterRestart(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 1)
		c, other := m.client(), m.client()
		a := c.holds(allocationSpec(2))
		s := stepSpec(a, 1)
		s.Detach = true
		step := other.run(s)
		m.server.mu.Lock()
		m.server.jobs[step].spec.Step = 0 // its end is lost
		m.server.mu.Unlock()
		c.tell(&control.EndAllocation{Job: a})
		c.ended()
		m.stop(context.Canceled)
		m.start()
		m.played[0].hosts(step, control.JobPhase_JOB_RUNNING)
		m.played[0].connect()
		time.Sleep(time.Minute)
		if j := m.client().summary(step); j.Phase != control.JobPhase_JOB_DONE || !strings.Contains(j.Error, "with its allocation") {
			t.Errorf("the step is %v", j)
		}
	})
}

// Signals for an allocation are for its command, which is at its client.
func TestAllocationSignals(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 1)
		c, other := m.client(), m.client()
		a := c.holds(allocationSpec(2))
		must[*control.Done](other, &control.Kill{Job: a, Rank: control.None, Signal: int32(unix.SIGTERM)})
		if sig := one[*control.Signal](t, &c.recorder); sig.Job != a || sig.Signal != int32(unix.SIGTERM) {
			t.Errorf("its client gets %v", sig)
		}
		for _, m := range []proto.Message{&control.Stdin{Job: a, Data: []byte("x")}, &control.Resize{Job: a, Size: &control.Terminal{}}, &control.FileChunk{Job: a, Last: true}, &control.Ack{Job: a}, &control.FilesRead{Job: a}} {
			c.tell(m)
		}
		if j := other.summary(a); j.Phase != control.JobPhase_JOB_RUNNING {
			t.Errorf("it is %v", j)
		}
		none[*control.Signal](t, &m.played[0].recorder, "a signal for a node")
		other.tell(&control.EndAllocation{Job: a})
		if j := other.summary(a); j.Phase != control.JobPhase_JOB_RUNNING {
			t.Errorf("another client has ended it: %v", j)
		}
	})
}

// An allocation has nothing on nodes, and a step stays in its allocation.
func TestAllocationRefused(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 3)
		c := m.client()
		a := c.holds(allocationSpec(4))
		ordinary := c.run(spec(1))
		for why, s := range map[string]*control.JobSpec{
			"runs nothing on its nodes":               {Ranks: 1, Allocation: true, Detach: true},
			"it has no input":                         {Ranks: 1, Allocation: true, Step: a},
			"can join its allocation's":               {Ranks: 1, Step: a, Joins: true},
			"--spares is for jobs outside":            {Ranks: 1, Step: a, Spares: 1, Launch: "x"},
			"node2 is not in allocation 1, which has": {Ranks: 1, Step: a, Only: []uint32{2}},
			"-x leaves no node of allocation 1":       {Ranks: 1, Step: a, Without: []uint32{0, 1}},
			"is built for vax":                        {Ranks: 1, Step: a, Arch: "vax"},
			"there is no allocation 2":                {Ranks: 1, Step: ordinary},
			"there is no allocation 77":               {Ranks: 1, Step: 77, WaitMs: -1},
			"it would wait for ever":                  {Ranks: 5, Step: a, WaitMs: -1},
		} {
			s.Path, s.Arch = []byte("/bin/true"), cmp.Or(s.Arch, spec(1).Arch)
			if _, err := c.ask(&control.RunRequest{Spec: s}); err == nil || !strings.Contains(err.Error(), why) {
				t.Errorf("%v, and the reason should say %q", err, why)
			}
		}
	})
}

// A step waits for other steps and for no other job; an allocation waits as jobs do. A step that
// waits is refused when its allocation ends.
func TestAllocationQueue(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 1)
		c, other := m.client(), m.client()
		a := c.holds(allocationSpec(2))
		later := allocationSpec(1)
		later.WaitMs = -1
		next := other.begin(&control.RunRequest{Spec: later})
		waits(t, next)
		step := c.run(stepSpec(a, 2))
		patientStep := func() <-chan asked {
			s := stepSpec(a, 1)
			s.WaitMs = -1
			answer := other.begin(&control.RunRequest{Spec: s})
			waits(t, answer)
			return answer
		}
		second, third := patientStep(), patientStep()
		m.end(c, step, 2)
		job := started(t, second)
		m.played[0].tell(&control.Loaded{Job: job})
		started(t, third)
		fourth := patientStep()
		waits(t, next)
		c.tell(&control.EndAllocation{Job: a})
		if answer := <-fourth; answer.err == nil || !strings.Contains(answer.err.Error(), "there is no allocation") {
			t.Errorf("a step that waits: %v", answer)
		}
		started(t, next)
	})
}

// Users cannot use the allocations of others. Steps do not count as theirs.
func TestAllocationsOfUsers(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 2, letsIn(t)) // 3 cores and 2 jobs for each
		ann, bob := m.as(7001), m.as(7002)
		a := ann.holds(allocationSpec(3))
		_, err := bob.ask(&control.RunRequest{Spec: stepSpec(a, 1)})
		isRefused(t, err, fmt.Sprintf("job %d is user7001's", a))
		early := stepSpec(a, 1) // of a request that was checked before there was the allocation
		early.Limited, early.Uid = true, 7002
		_, err = m.server.create(early, nil)
		isRefused(t, err, fmt.Sprintf("allocation %d is another user's", a))
		for range 3 {
			ann.run(stepSpec(a, 1))
		}
		isRoomless(t, ann, spec(1), "has 1 job on 3 cores")
		if j := bob.summary(a); !j.Allocation || !j.Hidden || j.Command != "" {
			t.Errorf("another user sees %v", j)
		}
	})
}

// The steps that share the network of their allocation learn of all its nodes.
func TestAllocationNetwork(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 2)
		c := m.client()
		a := c.holds(allocationSpec(4))
		s := stepSpec(a, 1)
		s.Network, s.Joins, s.Only = true, true, []uint32{1}
		c.run(s)
		p := one[*control.Prepare](t, &m.played[1].recorder)
		if nodes := placesOf(p.Network); p.NetworkJob != a || len(nodes) != 4 || nodes[0].Node != 0 || nodes[3].Node != 1 || len(placesOf(p.Layout)) != 1 {
			t.Errorf("node1 is asked to prepare %v", p)
		}
	})
}

// A core of an allocation that an operator has given another duty is not for steps.
func TestAllocationDuties(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 1)
		c := m.client()
		a := c.holds(allocationSpec(2))
		info := proto.CloneOf(m.played[0].register().Info)
		info.Cores = info.Cores[:1]
		m.played[0].answers = map[string]proto.Message{"SetDuties": &control.DutiesSet{Info: info}}
		must[*control.Done](m.client(), &control.SetDuties{Node: 0})
		isRoomless(t, c, stepSpec(a, 2), "but 1 of 1 is free")
		c.run(stepSpec(a, 1))
	})
}

// In any order of events each core is free, a job's or an allocation's, whose steps are on its
// cores. In the end all are free.
func TestAllocationModel(t *testing.T) {
	seed, histories := check.Seed(t), uint64(4)
	if os.Getenv("MARGAY_SOAK") != "" {
		histories = 500
	}
	for i := range histories {
		bubble(t, func(t *testing.T) {
			m := up(t, 3)
			c := m.client()
			rng := rand.New(rand.NewPCG(seed, i))
			held := make(map[uint32]uint32)  // cores of allocations
			steps := make(map[uint32]uint32) // allocations of steps
			plain := make(map[uint32]uint32) // cores of jobs
			var notes []string
			any := func(of map[uint32]uint32) uint32 {
				var all []uint32
				for job := range of {
					all = append(all, job)
				}
				if len(all) == 0 {
					return 0
				}
				slices.Sort(all)
				return all[rng.IntN(len(all))]
			}
			begin := func(s *control.JobSpec) uint32 {
				answer, err := c.ask(&control.RunRequest{Spec: s})
				if err != nil {
					return 0
				}
				job := answer.(*control.RunReply).Job
				for _, n := range m.played {
					n.tell(&control.Loaded{Job: job})
				}
				return job
			}
			end := func(job uint32) {
				must[*control.Done](c, &control.Kill{Job: job, Force: true})
				synctest.Wait()
			}
			for range 40 {
				size := 1 + rng.Uint32N(3)
				switch what := rng.IntN(8); what {
				case 0, 1:
					if job := begin(allocationSpec(size)); job != 0 {
						held[job] = size
					}
				case 2:
					if job := begin(spec(size)); job != 0 {
						plain[job] = size
					}
				case 3, 4, 5:
					a := any(held)
					if job := begin(stepSpec(a, size)); a == 0 {
						plain[job] = size
					} else if job != 0 {
						steps[job] = a
					}
				case 6:
					if job := any([]map[uint32]uint32{steps, plain}[rng.IntN(2)]); job != 0 {
						end(job)
						delete(steps, job)
						delete(plain, job)
					}
				case 7:
					if a := any(held); a != 0 {
						if rng.IntN(2) == 0 {
							end(a)
						} else {
							c.tell(&control.EndAllocation{Job: a})
						}
						delete(held, a)
						for step, of := range steps {
							if of == a {
								delete(steps, step)
							}
						}
					}
				}
				delete(plain, 0)
				notes = append(notes, fmt.Sprint("allocations ", held, ", steps ", steps, ", jobs ", plain))
				want := uint32(6)
				for _, cores := range held {
					want -= cores
				}
				for _, cores := range plain {
					want -= cores
				}
				users := make(map[uint32]bool)
				for _, n := range must[*control.Nodes](c, &control.ListNodes{}).Nodes {
					for _, core := range n.Cores {
						users[core.Job] = true
					}
				}
				for job := range users {
					if _, step := steps[job]; job != 0 && held[job] == 0 && plain[job] == 0 && !step {
						t.Errorf("a core is job %d's, which has ended", job)
					}
				}
				for step := range steps {
					if !users[step] {
						t.Errorf("step %d has no core", step)
					}
				}
				if free := c.freeCores(); free != want {
					t.Errorf("%d cores are free, not %d", free, want)
				}
				if t.Failed() {
					t.Fatalf("history %d:\n%s", i, strings.Join(notes, "\n"))
				}
			}
			c.conn.Close()
			synctest.Wait()
			if free := m.client().freeCores(); free != 6 {
				t.Errorf("%d cores are free at last", free)
			}
		})
	}
}

// While nodes forget a step that has ended for its client, its cores look like its allocation's.
// The next step gets them when the nodes have forgotten it.
func TestAllocationBeforeNodesForget(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 1)
		const slow = 5 * time.Second
		m.played[0].slow = map[string]time.Duration{"Forget": slow}
		c := m.client()
		a := c.holds(allocationSpec(2))
		step := c.run(stepSpec(a, 2))
		lastWords(m.played[0], step, new(control.Unkept))
		c.ackAll()
		c.ended()
		if free := c.freeCores(); free != 0 {
			t.Errorf("%d cores are free", free)
		}
		took := time.Now()
		next := must[*control.RunReply](c, &control.RunRequest{Spec: stepSpec(a, 2)})
		if waited := time.Since(took); waited != slow || len(next.Places) != 2 {
			t.Errorf("the next step has waited for %v, and is at %v", waited, next.Places)
		}
	})
}
