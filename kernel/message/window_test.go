package message

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"margay/internal/check"
	"margay/kernel/abi/frame"
	"margay/kernel/abi/id"
	"margay/kernel/abi/slot"
	"margay/kernel/abi/wire"
	"margay/kernel/extension/extensiontest"
	"margay/kernel/flow"
)

// heldFor returns the bytes of messages for a rank that its node holds in memory of its own.
func (j *testJob) heldFor(rank id.Rank) (bytes uint64) {
	job := j.nodes[j.config.Nodes[rank]].job
	_, bytes = job.local[rank].endpoint.Overflow()
	job.mu.Lock()
	defer job.mu.Unlock()
	return bytes + job.flow.Held(rank)
}

// flood sends a message from node 1 to node 0 as often as fits into 4 MiB, whatever the window.
func (j *testJob) flood(m frame.Message) {
	number := j.sent(1, 0)
	for sent := uint64(0); sent < 4<<20; {
		b := frame.New(frame.Messages, j.config.Job, Key(j.config.Secret), number)
		for range 30 {
			b = frame.AppendMessage(b, &m)
			number++
			sent += m.Cost()
		}
		j.nodes[0].engine.Frame(1, b)
	}
}

// The job's fault names a node that sends more than the window has room for. Messages beyond the
// window are dropped.
func TestFlood(t *testing.T) {
	const sender, target, far = 2, 0, 4 // ranks on nodes 1, 0 and 2
	big := make([]byte, 1000)
	for name, c := range map[string]struct {
		program extensiontest.Program
		message frame.Message
		limit   uint64
		before  func(j *testJob)
	}{
		"delivered":       {message: frame.Message{Payload: big}, limit: flow.Window},
		"no payload":      {message: frame.Message{}, limit: flow.Window},
		"upcalls":         {program: byHandler, message: frame.Message{Handler: upcall, Payload: big}, limit: flow.Window},
		"forwarded":       {program: byArgument, message: frame.Message{Args: [2]uint64{far}, Payload: big}, limit: flow.Window},
		"forwarded once":  {message: frame.Message{Hops: 1, Payload: big}, limit: flow.Window / 4},
		"forwarded often": {message: frame.Message{Hops: slot.MaxHops, Payload: big}, limit: flow.Window / 4},
		"behind one that is forwarded": {program: byArgument, message: frame.Message{Args: [2]uint64{target}}, limit: flow.Window, before: func(j *testJob) {
			way := j.net.hold(0, 2)
			j.join(sender).post(target, 1, far, nil)
			<-way.waits
			check.Await(t, "message that is forwarded", func() bool { return j.received(0, 1) == 1 })
		}},
		"after a restart": {message: frame.Message{Payload: big}, limit: flow.Window, before: func(j *testJob) {
			pass(t, j.join(sender), j.join(target), 0, 2000)
			j.lose(0, 1, true) // node 1 has really sent less than the flood
			j.restart(0)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			j := open(t, 3, 2)
			if c.program.Name != "" {
				j.insertEverywhere(c.program)
			}
			if c.before != nil {
				c.before(j)
			}
			c.message.Source, c.message.Target = sender, target
			j.flood(c.message)
			j.fault("node1 has sent rank 0 on node0 more than its window", fmt.Sprint(c.limit))
			if n := j.heldFor(target); n == 0 || n > c.limit {
				t.Errorf("node 0 holds %d bytes, the window is %d", n, c.limit)
			}
			if c.program.Name == "" {
				pass(t, j.join(far), j.join(target+1), 0, 300)
			}
		})
	}
}

// byHandlerAround returns the message's handler as its verdict, and forwards a message from one of
// the ranks to the next until it reaches the rank in its first argument.
func byHandlerAround(ranks int) extensiontest.Program {
	return extensiontest.Message("byhandleraround",
		"ldxw r0, [r1+16]",
		"jne r0, 3, +9",
		"ldxdw r2, [r1+24]",
		"ldxw r3, [r1+12]",
		"jne r2, r3, +2",
		"mov r0, 0",
		"exit",
		"add r3, 1",
		fmt.Sprintf("jlt r3, %d, +1", ranks),
		"mov r3, 0",
		"stxw [r1+12], r3",
		"exit")
}

// Messages of all kinds are sent between all ranks, forwarded or not, past ranks that do not read
// for a while, over connections that break, and across restarts of node kernels. No node is ever
// taken for one that exceeds its window. When all messages are read, the messages through each
// window equal those sent and those taken.
func TestHonestNodesKeepToWindows(t *testing.T) {
	const nodes, perNode = 3, 2
	random := rand.New(rand.NewPCG(check.Seed(t), 1))
	j := open(t, nodes, perNode)
	j.insertEverywhere(byHandlerAround(nodes * perNode))
	var apps []*app
	for rank := range nodes * perNode {
		apps = append(apps, j.join(rank))
	}
	for round := range check.Rounds(3, 6) {
		var ranks, breaks sync.WaitGroup
		over := make(chan struct{})
		favourite := random.IntN(len(apps))
		for rank := range apps {
			r := rand.New(rand.NewPCG(random.Uint64(), 1))
			ranks.Go(func() { playRound(t, apps, rank, favourite, r) })
		}
		r := rand.New(rand.NewPCG(random.Uint64(), 1))
		breaks.Go(func() { j.breakUntil(over, r) })
		ranks.Wait()
		close(over)
		breaks.Wait()
		j.nothingHeld()
		j.noFault()
		check.Await(t, fmt.Sprintf("agreement about windows in round %d", round), j.windowsAgree)
		for range random.IntN(nodes) {
			j.restart(random.IntN(nodes))
		}
	}
	j.noFault()
}

// playRound sends messages from a rank, most of them to a favourite, reads some of the time, and
// enters a barrier.
func playRound(t *testing.T, apps []*app, rank, favourite int, random *rand.Rand) {
	a := apps[rank]
	read := func() (any bool) {
		_, ordinary := a.next(0)
		_, upcall := a.nextUpcall(0)
		return ordinary || upcall
	}
	deadline := time.Now().Add(30 * time.Second)
	deafUntil := time.Now().Add(time.Duration(random.IntN(100)) * time.Millisecond)
	for sent := 0; sent < 1500; {
		target, kind := random.IntN(len(apps)), random.IntN(int(slot.Upcall)+1)
		if random.IntN(3) > 0 {
			target = favourite
		}
		last := (target + random.IntN(slot.MaxHops+1)) % len(apps)
		payload := make([]byte, random.IntN(wire.MaxPayload+1))
		for !a.post(target, uint16(kind), uint64(last), payload) {
			if time.Now().After(deadline) {
				t.Errorf("rank %d: there is no room for message %d", rank, sent)
				return
			}
			if time.Now().Before(deafUntil) || !read() {
				time.Sleep(100 * time.Microsecond)
			}
		}
		sent++
	}
	for number := a.enter(); a.area.Released().Load() < number; {
		if time.Now().After(deadline) {
			t.Errorf("rank %d is stuck in the barrier", rank)
			return
		}
		if !read() {
			time.Sleep(100 * time.Microsecond)
		}
	}
	for read() {
	}
}

// breakUntil breaks connections on which nothing is lost, until over is closed.
func (j *testJob) breakUntil(over chan struct{}, random *rand.Rand) {
	for {
		select {
		case <-over:
			return
		case <-time.After(time.Millisecond):
			a := random.IntN(len(j.nodes))
			b := (a + 1 + random.IntN(len(j.nodes)-1)) % len(j.nodes)
			j.nodes[a].engine.Broken(id.Node(b))
			j.nodes[b].engine.Broken(id.Node(a))
		}
	}
}

// windowsAgree reports whether as much has arrived through each window, and was taken, as was sent.
func (j *testJob) windowsAgree() bool {
	for rank, node := range j.config.Nodes {
		for from := range j.nodes {
			for hops := range uint8(flow.Hops) {
				sender, receiver := j.nodes[from].job, j.nodes[node].job
				channel := flow.ChannelOf(id.Rank(rank), hops)
				here, there := sender.stream(channel, from), receiver.stream(channel, from)
				if here.Spent != there.Came || there.Came != there.Taken {
					return false
				}
			}
		}
	}
	return true
}
