package serve

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"margay/cluster/control"
)

func TestJobLife(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 3)
		c := m.client()
		s := spec(3)
		s.Stdin = control.StdinMode_STDIN_ALL
		reply := must[*control.RunReply](c, &control.RunRequest{Spec: s})
		places := []*control.Place{{Rank: 0, Node: 0, Core: 1}, {Rank: 1, Node: 0, Core: 2}, {Rank: 2, Node: 1, Core: 1}}
		if !samePlaces(reply.Places, places) {
			t.Fatalf("placed at %v", reply.Places)
		}
		var secret []byte
		for _, n := range m.played[:2] {
			p := one[*control.Prepare](t, &n.recorder)
			if !samePlaces(placesOf(p.Layout), places) || len(p.Layout.Runs) != 2 || p.Layout.Runs[1].Address != "10.0.0.1:1" || !bytes.Equal(p.Spec.Path, s.Path) {
				t.Fatalf("node %d is to prepare %v", n.number, p)
			}
			if secret == nil {
				secret = p.Secret
			}
			if len(p.Secret) < 16 || !bytes.Equal(p.Secret, secret) {
				t.Errorf("the secret of node %d is %x, that of node 0 is %x", n.number, p.Secret, secret)
			}
		}
		none[*control.Prepare](t, &m.played[2].recorder, "a node without ranks was asked")

		c.tell(&control.FileChunk{Job: reply.Job, Data: []byte("files"), Last: true})
		if chunk := one[*control.FileChunk](t, &m.played[0].recorder); string(chunk.Data) != "files" || !chunk.Last {
			t.Errorf("the first node got %v", chunk)
		}
		none[*control.FileChunk](t, &m.played[1].recorder, "files go through the first node")
		m.played[0].tell(&control.FileTaken{Job: reply.Job, Offset: 5})
		if taken := one[*control.FileTaken](t, &c.recorder); taken.Offset != 5 {
			t.Errorf("the client hears of %v", taken)
		}
		m.played[0].tell(&control.Loaded{Job: reply.Job})
		m.played[0].tell(&control.Loaded{Job: reply.Job})
		none[*control.Start](t, &m.played[0].recorder, "it was started before all nodes have the files")
		m.played[1].tell(&control.Loaded{Job: reply.Job})
		for _, n := range m.played[:2] {
			one[*control.Start](t, &n.recorder)
		}
		if state := one[*control.JobState](t, &c.recorder); state.Phase != control.JobPhase_JOB_RUNNING {
			t.Fatalf("state %v", state)
		}
		if c.freeCores() != 3 || c.summary(reply.Job).Phase != control.JobPhase_JOB_RUNNING {
			t.Errorf("%d cores are free, and the job is %v", c.freeCores(), c.summary(reply.Job))
		}

		c.tell(&control.Stdin{Job: reply.Job, Offset: 7, Data: []byte("in"), Eof: true})
		var readers []uint32
		for _, n := range m.played[:2] {
			for _, in := range take[*control.Stdin](&n.recorder) {
				readers = append(readers, in.Rank)
				if in.Offset != 7 || string(in.Data) != "in" || !in.Eof {
					t.Errorf("rank %d reads %v", in.Rank, in)
				}
			}
		}
		if !slices.Equal(readers, []uint32{0, 1, 2}) {
			t.Errorf("the ranks %v read", readers)
		}
		m.played[1].tell(&control.StdinTaken{Job: reply.Job, Rank: 2, Offset: 9})
		if taken := one[*control.StdinTaken](t, &c.recorder); taken.Rank != 2 || taken.Offset != 9 {
			t.Errorf("the client hears of %v", taken)
		}

		m.played[1].says(reply.Job, 1, 2, "hello\n")
		record := one[*control.Record](t, &c.recorder)
		if string(record.Data) != "hello\n" || record.Node != 1 {
			t.Errorf("the client gets %v", record)
		}
		none[*control.Ack](t, &m.played[1].recorder, "a record was acknowledged before the client has it")
		c.tell(&control.Ack{Job: reply.Job, Node: 1, Seq: 1})
		if ack := one[*control.Ack](t, &m.played[1].recorder); ack.Job != reply.Job || ack.Seq != 1 {
			t.Errorf("the node is told %v", ack)
		}
		m.played[0].exits(reply.Job, 1, 0, 0, 0)
		m.played[1].exits(reply.Job, 2, 2, 0, 0)
		m.played[0].exits(reply.Job, 2, 1, 0, 0)
		none[*control.Forget](t, &m.played[0].recorder, "it ended before the last records were acknowledged")
		c.ackAll()
		if state := c.ended(); state.ExitCode != 0 || state.Error != nil || state.FirstFailed != control.None {
			t.Errorf("it ended as %v", state)
		}
		for _, n := range m.played[:2] {
			one[*control.Forget](t, &n.recorder)
		}
		if c.freeCores() != 6 {
			t.Errorf("%d cores are free", c.freeCores())
		}
		if state := must[*control.JobState](c, &control.Attach{Job: reply.Job}); state.Phase != control.JobPhase_JOB_DONE || len(state.Ranks) != 3 || !state.Ranks[2].Ended {
			t.Errorf("it is remembered as %v", state)
		}
	})
}

func samePlaces(a, b []*control.Place) bool {
	return slices.EqualFunc(a, b, func(x, y *control.Place) bool { return x.Rank == y.Rank && x.Node == y.Node && x.Core == y.Core })
}

// The rank that fails first determines the job's status and ends the others, politely at first.
// With KeepGoing, the lowest rank that fails determines it.
func TestFirstFailureDecides(t *testing.T) {
	cases := []struct {
		name         string
		code, signal int32
		keepGoing    bool
		want, first  int32
	}{
		{name: "status", code: 3, want: 3, first: 3},
		{name: "signal", signal: int32(unix.SIGSEGV), want: 128 + int32(unix.SIGSEGV), first: 3},
		{name: "keep going", code: 4, keepGoing: true, want: 5, first: 0},
	}
	for _, k := range cases {
		t.Run(k.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				m := up(t, 2)
				c := m.client()
				s := spec(4)
				s.KeepGoing = k.keepGoing
				job := c.run(s)
				m.played[1].exits(job, 1, 3, k.code, k.signal)
				c.ackAll()
				time.Sleep(time.Second)
				if k.keepGoing {
					none[*control.Signal](t, &m.played[0].recorder, "the others were to keep going")
				} else {
					for _, n := range m.played {
						if sig := one[*control.Signal](t, &n.recorder); sig.Rank != control.None || sig.Signal != int32(unix.SIGTERM) {
							t.Errorf("node %d gets %v", n.number, sig)
						}
					}
					time.Sleep(2 * time.Second)
					if sig := one[*control.Signal](t, &m.played[0].recorder); sig.Signal != int32(unix.SIGKILL) {
						t.Errorf("then node 0 gets %v", sig)
					}
				}
				m.played[0].exits(job, 1, 0, 5, 0)
				m.played[0].exits(job, 2, 1, 0, int32(unix.SIGKILL))
				m.played[1].exits(job, 2, 2, 0, int32(unix.SIGTERM))
				c.ackAll()
				if state := c.ended(); state.ExitCode != k.want || state.FirstFailed != k.first || state.Error != nil {
					t.Errorf("it ended as %v", state)
				}
			})
		})
	}
}

// With --keep-going the status does not depend on which rank was faster: it is the status of the
// lowest rank that failed.
func TestLowestFailureDecides(t *testing.T) {
	for _, order := range [][]uint32{{0, 1, 2, 3}, {3, 2, 1, 0}, {1, 3, 0, 2}, {2, 0, 3, 1}} {
		t.Run(fmt.Sprint(order), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				m := up(t, 2)
				c := m.client()
				s := spec(4)
				s.KeepGoing = true
				job := c.run(s)
				seqs := make(map[uint32]uint64)
				for _, rank := range order {
					node := rank / 2
					seqs[node]++
					code := []int32{0, 4, 5, 6}[rank]
					m.played[node].exits(job, seqs[node], rank, code, 0)
					c.ackAll()
				}
				if state := c.ended(); state.ExitCode != 4 || state.FirstFailed != 1 || state.Error != nil {
					t.Errorf("it ended as %v", state)
				}
			})
		})
	}
}

// The ends of killed ranks may be queued behind output that the client does not take. The
// output must not be discarded for that.
func TestEndsBehindOutput(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 2)
		c := m.client()
		job := c.run(spec(4))
		m.played[1].says(job, 1, 2, "nobody reads this yet\n")
		m.played[0].exits(job, 1, 0, 1, 0)
		time.Sleep(time.Hour)
		none[*control.JobState](t, &c.recorder, "the reader may take its time")
		m.played[0].exits(job, 2, 1, 0, int32(unix.SIGTERM))
		m.played[1].exits(job, 2, 2, 0, int32(unix.SIGTERM))
		m.played[1].exits(job, 3, 3, 0, int32(unix.SIGTERM))
		c.ackAll()
		if state := c.ended(); state.ExitCode != 1 || state.Error != nil {
			t.Errorf("it ended as %v", state)
		}
	})
}

// Processes that ranks have left behind are ended once all ranks have ended, and serve waits for
// their output.
func TestRanksLeaveChildren(t *testing.T) {
	for _, restart := range []bool{false, true} {
		t.Run(fmt.Sprintf("restart %v", restart), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				m := up(t, 2)
				c := m.client()
				job := c.run(spec(4))
				open := m.played[0]
				for rank := range uint32(2) {
					open.tell(&control.Record{
						Job: job, Seq: uint64(rank + 1), Rank: rank, Stream: control.Stream_STREAM_EXIT, Open: true, Exit: new(control.ExitStatus),
					})
				}
				none[*control.Finish](t, &open.recorder, "ranks run elsewhere")
				m.played[1].exits(job, 1, 2, 0, 0)
				m.played[1].exits(job, 2, 3, 0, 0)
				one[*control.Finish](t, &open.recorder)
				none[*control.Finish](t, &m.played[1].recorder, "its output is complete")
				c.ackAll()
				if restart {
					time.Sleep(recordPause)
					m.restart()
					c = m.attach(job)
					m.back(job, control.JobPhase_JOB_DONE, 0, 1)
					one[*control.Finish](t, &open.recorder)
				}
				none[*control.JobState](t, &c.recorder, "children may have written more")
				open.says(job, 3, 1, "late\n")
				open.tell(&control.Record{Job: job, Seq: 4, Rank: 1, Stream: control.Stream_STREAM_END, Last: true, Acked: open.ackedOf(job)})
				if r := c.ackAll(); len(r) != 2 || string(r[0].Data) != "late\n" {
					t.Errorf("the client gets %v", r)
				}
				if state := c.ended(); state.ExitCode != 0 || state.Error != nil {
					t.Errorf("it ended as %v", state)
				}
			})
		})
	}
}

func TestRanksThatDoNotEnd(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 2)
		c := m.client()
		job := c.run(spec(4))
		m.played[0].exits(job, 1, 0, 1, 0)
		c.ackAll()
		time.Sleep(10 * time.Second)
		state := c.ended()
		if !errors.Is(state.Error.Err(), &control.Failure{Code: control.Code_CODE_TIMEOUT}) || state.FirstFailed != 0 || state.ExitCode != 125 {
			t.Errorf("it ended as %v", state)
		}
		one[*control.Forget](t, &m.played[1].recorder)
	})
}

func TestKill(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 2)
		c, other := m.client(), m.client()
		job := c.run(spec(3))
		must[*control.Done](other, &control.Kill{Job: job, Rank: control.None, Signal: int32(unix.SIGUSR1)})
		for _, n := range m.played {
			if sig := one[*control.Signal](t, &n.recorder); sig.Rank != control.None || sig.Signal != int32(unix.SIGUSR1) {
				t.Errorf("node %d gets %v", n.number, sig)
			}
		}
		must[*control.Done](other, &control.Kill{Job: job, Rank: 2, Signal: int32(unix.SIGUSR2)})
		if sig := one[*control.Signal](t, &m.played[1].recorder); sig.Rank != 2 {
			t.Errorf("node 1 gets %v", sig)
		}
		none[*control.Signal](t, &m.played[0].recorder, "the rank is on the other node")
		m.played[1].exits(job, 1, 2, 0, 0)
		must[*control.Done](other, &control.Kill{Job: job, Rank: 2, Signal: int32(unix.SIGUSR2)})
		none[*control.Signal](t, &m.played[1].recorder, "the rank has ended")
		refused := []struct {
			request *control.Kill
			code    control.Code
		}{
			{&control.Kill{Job: job, Rank: 3, Signal: 1}, control.Code_CODE_NOT_FOUND},
			{&control.Kill{Job: job, Rank: -2, Signal: 1}, control.Code_CODE_NOT_FOUND},
			{&control.Kill{Job: job, Rank: 0, Signal: 0}, control.Code_CODE_BAD_REQUEST},
			{&control.Kill{Job: job, Rank: 0, Signal: 65}, control.Code_CODE_BAD_REQUEST},
			{&control.Kill{Job: job + 1, Rank: 0, Signal: 1}, control.Code_CODE_NOT_FOUND},
		}
		for _, r := range refused {
			if _, err := other.ask(r.request); !errors.Is(err, &control.Failure{Code: r.code}) {
				t.Errorf("%v: %v", r.request, err)
			}
		}
		must[*control.Done](other, &control.Kill{Job: job, Rank: control.None, Force: true})
		if state := c.ended(); state.Error.GetText() != "job 1 was killed by its user" || state.ExitCode != 137 {
			t.Errorf("it ended as %v", state)
		}
		if _, err := other.ask(&control.Kill{Job: job, Force: true}); err == nil || err.Error() != "job 1 has ended" {
			t.Errorf("a job that has ended is killed: %v", err)
		}
	})
}

// Ranks on a node that is away do not get a signal, and its sender is notified.
func TestKillOnNodeThatIsAway(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 2)
		c := m.client()
		job := c.run(spec(3))
		m.played[1].conn.Close()
		synctest.Wait()
		_, err := c.ask(&control.Kill{Job: job, Rank: control.None, Signal: int32(unix.SIGUSR1)})
		if !errors.Is(err, &control.Failure{Code: control.Code_CODE_RESTARTED}) || !strings.HasPrefix(err.Error(), "node1: its ranks did not get the signal") {
			t.Errorf("it was answered with %v", err)
		}
		one[*control.Signal](t, &m.played[0].recorder)
		m.played[1].hosts(job, control.JobPhase_JOB_RUNNING)
		m.played[1].connect()
		must[*control.Done](c, &control.Kill{Job: job, Rank: 2, Signal: int32(unix.SIGUSR1)})
		one[*control.Signal](t, &m.played[1].recorder)
	})
}

// Any error on a node during a launch ends the job on all nodes, and the message names the node.
func TestLaunchFails(t *testing.T) {
	cases := []struct {
		name  string
		spoil func(n *playedNode)
		after func(n *playedNode, job uint32) // called once the job is prepared
		want  string
		code  int32
	}{
		{
			name:  "prepare",
			spoil: func(n *playedNode) { n.refused["Prepare"] = control.Failf(control.Code_CODE_NO_ROOM, "no memory") },
			want:  "node1: no memory",
		}, {
			name:  "silent",
			spoil: func(n *playedNode) { n.mute["Prepare"] = true },
			want:  "node1: no answer to Prepare: context deadline exceeded",
		}, {
			name: "load",
			after: func(n *playedNode, job uint32) {
				n.tell(&control.Loaded{Job: job, Error: control.FromError(control.Failf(control.Code_CODE_FAILED, "disk").At(1))})
			},
			want: "node1: disk", code: 125,
		}, {
			name:  "start",
			spoil: func(n *playedNode) { n.refused["Start"] = control.Failf(control.Code_CODE_NOT_FOUND, "exec /x").Of(2) },
			after: func(n *playedNode, job uint32) { n.tell(&control.Loaded{Job: job}) },
			want:  "rank 2 on node1: exec /x", code: 127,
		}, {
			name: "not executable",
			spoil: func(n *playedNode) {
				n.refused["Start"] = control.Failf(control.Code_CODE_NOT_EXECUTABLE, "exec /x").Of(2)
			},
			after: func(n *playedNode, job uint32) { n.tell(&control.Loaded{Job: job}) },
			want:  "rank 2 on node1: exec /x", code: 126,
		},
	}
	for _, k := range cases {
		t.Run(k.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				m := up(t, 2)
				c := m.client()
				if k.spoil != nil {
					k.spoil(m.played[1])
				}
				answer, err := c.ask(&control.RunRequest{Spec: spec(4)})
				if k.after == nil {
					if err == nil || err.Error() != k.want {
						t.Errorf("it is answered with %v, %v", answer, err)
					}
				} else {
					if err != nil {
						t.Fatal(err)
					}
					m.played[0].tell(&control.Loaded{Job: 1})
					k.after(m.played[1], 1)
				}
				if state := c.ended(); state.Error.Err().Error() != k.want || k.code != 0 && state.ExitCode != k.code {
					t.Errorf("it ended as %v", state)
				}
				for _, n := range m.played {
					one[*control.Forget](t, &n.recorder)
				}
				if c.freeCores() != 4 {
					t.Errorf("%d cores are free", c.freeCores())
				}
			})
		})
	}
}

// When a client learns that a job could not be launched, the job's cores are free.
func TestRefusedJobHasNoCores(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 2)
		c := m.client()
		m.played[1].refused["Prepare"] = control.Failf(control.Code_CODE_NO_ROOM, "no memory")
		if answer, err := c.ask(&control.RunRequest{Spec: spec(4)}); err == nil {
			t.Errorf("it is answered with %v", answer)
		}
		if c.freeCores() != 4 {
			t.Errorf("%d cores are free", c.freeCores())
		}
	})
}

// On a machine of many nodes, a node has longer to end a job before it is asked again.
func TestForgetOfMany(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 2, func(c *Config) { c.Timing.Space = 500 * time.Millisecond }) // heartbeats are half as frequent
		m.played[0].slow = map[string]time.Duration{"Forget": 2*forgetTimeout - time.Second}
		c := m.client()
		job := c.run(spec(4))
		must[*control.Done](c, &control.Kill{Job: job, Force: true})
		time.Sleep(2 * forgetTimeout)
		if got := take[*control.Forget](&m.played[0].recorder); len(got) != 1 || c.freeCores() != 4 {
			t.Errorf("the node was asked %d times, and %d cores are free", len(got), c.freeCores())
		}
	})
}

// A node that does not confirm the end of a job may still have processes of it, and gets no other
// job until then.
func TestCoresOfUnendedJob(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 2)
		c := m.client()
		n := m.played[0]
		n.mute["Forget"] = true
		job := c.run(spec(4))
		must[*control.Done](c, &control.Kill{Job: job, Force: true})
		time.Sleep(forgetTimeout + time.Second)
		c.ended()
		if free := c.freeCores(); free != 2 {
			t.Errorf("%d cores are free, 2 of 4 on a node that still has the job", free)
		}
		n.answersAgain("Forget")
		time.Sleep(forgetTimeout)
		n.hosts(job, control.JobPhase_JOB_RUNNING)
		n.connect() // serve has closed the connection
		if free := c.freeCores(); free != 4 {
			t.Errorf("%d cores are free after the end of the job", free)
		}
	})
}

// A job can fail right when the last node has its files. It must not be recorded as running then.
func TestFailsWhenLoaded(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 1)
		c := m.client()
		for range 20 {
			reply := must[*control.RunReply](c, &control.RunRequest{Spec: spec(1)})
			synctest.Wait()
			m.server.mu.Lock()
			j := m.server.jobs[reply.Job]
			m.server.nodeLoaded(j, m.server.nodes[0], &control.Loaded{Job: reply.Job})
			m.server.fail(j, control.Failf(control.Code_CODE_FAILED, "in between"))
			m.server.mu.Unlock()
			if state := c.ended(); state.Error.GetText() != "in between" {
				t.Fatalf("it ended as %v", state)
			}
			if s := c.summary(reply.Job); s.Phase != control.JobPhase_JOB_DONE {
				t.Fatalf("it is recorded as %v", s)
			}
			none[*control.Start](t, &m.played[0].recorder, "a job that has failed was started")
		}
	})
}

func TestClientGone(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 1)
		c, other := m.client(), m.client()
		job := c.run(spec(2))
		if _, err := other.ask(&control.Attach{Job: job}); !errors.Is(err, &control.Failure{Code: control.Code_CODE_REFUSED}) {
			t.Errorf("a job has two clients: %v", err)
		}
		other.tell(&control.Ack{Job: job, Node: 0, Seq: 1})
		none[*control.Ack](t, &m.played[0].recorder, "somebody else acknowledges")
		c.conn.Close()
		one[*control.Forget](t, &m.played[0].recorder)
		if s := other.summary(job); s.Phase != control.JobPhase_JOB_DONE || s.Error != "its margay run is gone" {
			t.Errorf("it is recorded as %v", s)
		}
		if _, err := other.ask(&control.Attach{Job: job + 1}); !errors.Is(err, &control.Failure{Code: control.Code_CODE_NOT_FOUND}) {
			t.Errorf("attached to no job: %v", err)
		}
	})
}

// serve reports to clients why it ends if that concerns them.
func TestFarewell(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 1)
		c := m.client()
		c.run(spec(1))
		m.stop(errors.New("the machine goes down"))
		if state := c.ended(); state.Error.GetText() != "the machine goes down" || state.ExitCode != 125 {
			t.Errorf("the client is told %v", state)
		}
	})
}

// serve can end while a node has not answered that it has prepared a job.
func TestFarewellDuringLaunch(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 1)
		c := m.client()
		m.played[0].mute["Prepare"] = true
		if err := c.conn.Send(&control.RunRequest{Spec: spec(1)}); err != nil {
			t.Fatal(err)
		}
		one[*control.Prepare](t, &m.played[0].recorder)
		m.stop(errors.New("the machine goes down"))
		if state := c.ended(); state.Error.GetText() != "the machine goes down" {
			t.Errorf("the client is told %v", state)
		}
	})
}

// Every client receives the reason why serve ends, whatever it waits for, and not an error that a
// node has not answered: serve caused that.
func TestFarewellToAll(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 1)
		m.played[0].mute["TakeSamples"], m.played[0].mute["Noise"] = true, true
		clients := []*playedClient{m.client()} // it waits for nothing
		answered := make(chan error, 2)
		for _, request := range []proto.Message{&control.TakeSamples{Node: control.None}, &control.Noise{Node: control.None, DurationMs: 1000}} {
			c := m.client()
			clients = append(clients, c)
			go func() {
				_, err := c.ask(request)
				answered <- err
			}()
		}
		synctest.Wait()
		m.stop(errors.New("the machine goes down"))
		ends := []error{<-answered, <-answered}
		for _, c := range clients {
			ends = append(ends, c.conn.Err())
		}
		for _, err := range ends {
			if !errors.Is(err, &control.Failure{Code: control.Code_CODE_DOWN}) || err.Error() != "the machine goes down" {
				t.Errorf("a client is told: %v", err)
			}
		}
	})
}

// A node stays connected until the last client is notified: a client that asks about the node in
// between would otherwise learn that it is not up.
func TestFarewellToClientsFirst(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 1)
		c := control.NewConn(m.clients.Dial(t)) // of a client that does not read
		t.Cleanup(c.Close)
		if _, err := c.Greet(&control.Hello{Role: control.Role_ROLE_CLIENT, Program: "a slow client"}); err != nil {
			t.Fatal(err)
		}
		n := m.played[0].conn
		stopped := make(chan struct{})
		go func() {
			defer close(stopped)
			m.stop(errors.New("the machine goes down"))
		}()
		time.Sleep(500 * time.Millisecond)
		if err := n.Err(); err != nil {
			t.Errorf("the node's connection has ended before the client's: %v", err)
		}
		<-stopped
		if n.Err() == nil {
			t.Error("the node's connection has not ended")
		}
	})
}

// If a node cannot do something for a job whose ranks are being ended because one has failed, that
// does not hide how the rank ended.
func TestFaultWhileRanksAreEnded(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 1)
		c := m.client()
		job := c.run(spec(2))
		n := m.played[0]
		n.exits(job, 1, 0, 5, 0)
		n.tell(&control.JobFault{Job: job, Error: control.FromError(control.Failf(control.Code_CODE_FAILED, "rank 0 has sent a message to rank 1, which has ended"))})
		n.exits(job, 2, 1, 0, int32(unix.SIGTERM))
		c.ackAll()
		if state := c.ended(); state.ExitCode != 5 || state.Error != nil {
			t.Errorf("it ended as %v", state)
		}
	})
}

// The other nodes may learn that a rank has ended before its record comes, which decides.
func TestFaultBeforeRecord(t *testing.T) {
	for _, code := range []int32{0, 5} {
		bubble(t, func(t *testing.T) {
			m := up(t, 2)
			c := m.client()
			job := c.run(spec(4))
			fault := &control.JobFault{Job: job, Ended: 3, Error: control.FromError(control.Failf(control.Code_CODE_FAILED, "rank 0 has sent a message to rank 2, which has ended"))}
			m.played[0].tell(fault)
			time.Sleep(time.Second)
			m.played[1].exits(job, 1, 2, code, 0)
			if code == 0 {
				if state := c.ended(); state.ExitCode != 125 || state.Error.GetText() != fault.Error.Text {
					t.Errorf("it ended as %v", state)
				}
				return
			}
			m.played[1].exits(job, 2, 3, 0, int32(unix.SIGTERM))
			m.played[0].exits(job, 1, 0, 0, int32(unix.SIGTERM))
			m.played[0].exits(job, 2, 1, 0, int32(unix.SIGTERM))
			c.ackAll()
			if state := c.ended(); state.ExitCode != 5 || state.Error != nil {
				t.Errorf("it ended as %v", state)
			}
		})
	}
}

// It also does not hide that the job has reached its time limit.
func TestFaultAtTimeLimit(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 1)
		c := m.client()
		limited := spec(2)
		limited.LimitMs = 1000
		job := c.run(limited)
		n := m.played[0]
		time.Sleep(2 * time.Second)
		n.tell(&control.JobFault{Job: job, Error: control.FromError(control.Failf(control.Code_CODE_FAILED, "rank 0 has sent a message to rank 1, which has ended"))})
		n.exits(job, 1, 0, 0, int32(unix.SIGTERM))
		n.exits(job, 2, 1, 0, int32(unix.SIGTERM))
		c.ackAll()
		if state := c.ended(); state.ExitCode != 124 || state.Error.Err() == nil || !strings.Contains(state.Error.Err().Error(), "time limit") {
			t.Errorf("it ended as %v", state)
		}
	})
}

func TestJobFault(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 2)
		c := m.client()
		job := c.run(spec(4))
		m.played[1].tell(&control.JobFault{Job: job, Error: control.FromError(control.Failf(control.Code_CODE_FAILED, "rings are corrupt").At(1).Of(3))})
		if state := c.ended(); state.Error.Err().Error() != "rank 3 on node1: rings are corrupt" || state.ExitCode != 125 {
			t.Errorf("it ended as %v", state)
		}
		// Its client must not launch it again.
		job = c.run(spec(4))
		m.played[1].tell(&control.JobFault{Job: job, Error: control.FromError(control.Failf(control.Code_CODE_LAUNCH_LOST, "none of its ranks has run"))})
		if state := c.ended(); state.Error.Code != control.Code_CODE_FAILED {
			t.Errorf("it ended as %v", state)
		}
	})
}

func TestCommandIsCut(t *testing.T) {
	if text := commandLine(&control.Exec{Argv: [][]byte{[]byte("a"), []byte("b\xff"), bytes.Repeat([]byte("c"), 300), []byte("d")}}); text != "a b? ..." {
		t.Errorf("the command is %q", text)
	}
	programs := &control.Exec{Argv: [][]byte{[]byte("a")}, Parts: []*control.Part{{Argv: [][]byte{[]byte("b"), []byte("c")}}, {Argv: [][]byte{[]byte("d")}}}}
	if text := commandLine(programs); text != "a : b c : d" {
		t.Errorf("the command is %q", text)
	}
}

// The work for a command line does not grow with the number of programs.
func TestCommandOfManyParts(t *testing.T) {
	exec := &control.Exec{Parts: slices.Repeat([]*control.Part{{}}, 1000)}
	if n := testing.AllocsPerRun(1, func() { commandLine(exec) }); n > 2*maxCommand {
		t.Errorf("%v allocations for %d parts", n, len(exec.Parts))
	}
}

// What a node says about a fault does not take more memory than the place of one.
func TestBoundFault(t *testing.T) {
	for want, f := range map[bool]*control.RankFault{
		true:  {Files: make([]*control.CodeFile, faultFiles), Stack: &control.CodeStack{Files: make([]int32, faultFrames), Addresses: make([]uint64, faultFrames)}},
		false: {Files: []*control.CodeFile{{Build: make([]byte, faultBuild+1)}}},
	} {
		exit := &control.ExitStatus{Signal: 11, Fault: f}
		if boundFault(exit); (exit.Fault != nil) != want {
			t.Errorf("%v stays: %v", f, !want)
		}
	}
	exit := &control.ExitStatus{Fault: &control.RankFault{Stack: &control.CodeStack{Addresses: make([]uint64, faultFrames+1)}}}
	if boundFault(exit); exit.Fault != nil {
		t.Error("a deep stack stays")
	}
	boundFault(nil)
}

// A summary, which is sent without Server.mu, stays as it is when more files are lost.
func TestSummaryOfLoss(t *testing.T) {
	j := newJob(7, new(control.JobSpec), nil)
	for node := range uint32(3) {
		j.lose(node+1, &control.Unkept{Files: 1})
	}
	m := j.summary()
	j.lose(0, &control.Unkept{Files: 1})
	if len(m.Unkept) != 3 || m.Unkept[0].Node != 1 {
		t.Errorf("the summary became %v", m)
	}
}

// The nodes of a job may take longer to launch it the more they are, but not to forget it: its
// cores must be free in time.
func TestManyNodesOfJob(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 3, func(c *Config) { c.Timing.Each = 10 * time.Second })
		m.played[1].mute["Prepare"] = true
		began := time.Now()
		_, err := m.client().ask(&control.RunRequest{Spec: spec(6)})
		if took := time.Since(began); !errors.Is(err, &control.Failure{Code: control.Code_CODE_TIMEOUT}) || took != prepareTimeout+20*time.Second {
			t.Errorf("a node that does not prepare it: %v after %v", err, took)
		}
		m.played[1].mute["Prepare"] = false
		c := m.client()
		job := c.run(spec(6))
		m.played[1].mute["Forget"] = true
		must[*control.Done](c, &control.Kill{Job: job, Rank: control.None, Force: true})
		began = time.Now()
		if a, err := m.client().ask(&control.RunRequest{Spec: spec(4)}); err != nil {
			t.Errorf("the next job: %v, %v", a, err)
		}
		if took := time.Since(began); took > forgetTimeout {
			t.Errorf("the next job got cores after %v", took)
		}
	})
}

// The launch of a job that a node refuses does not wait for the other nodes.
func TestRefusedEarly(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 2)
		m.played[0].refused["Prepare"] = control.Failf(control.Code_CODE_REFUSED, "not here")
		m.played[1].mute["Prepare"] = true
		began := time.Now()
		_, err := m.client().ask(&control.RunRequest{Spec: spec(4)})
		if took := time.Since(began); !errors.Is(err, &control.Failure{Code: control.Code_CODE_REFUSED}) || took > time.Second {
			t.Errorf("%v after %v", err, took)
		}
	})
}
