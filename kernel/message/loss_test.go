package message

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"margay/internal/check"
	"margay/kernel/abi/frame"
	"margay/kernel/abi/id"
	"margay/kernel/flow"
)

// pass sends messages from one rank to another, numbered [first, end), and checks that these arrive
// in order, and no others.
func pass(t testing.TB, from, to *app, first, end int) {
	t.Helper()
	target := int(to.header.Rank)
	for sent, got := first, first; got < end; got++ {
		for sent < end && from.post(target, 1, uint64(sent), fmt.Appendf(nil, "%1000d", sent)) {
			sent++
		}
		r, ok := to.next(time.Minute)
		if !ok {
			t.Fatalf("from rank %d to rank %d: message %d did not come", from.header.Rank, target, got)
		}
		if r.Peer != from.header.Rank || r.Args[0] != uint64(got) || string(r.Payload) != fmt.Sprintf("%1000d", got) {
			t.Fatalf("from rank %d to rank %d: message %d came as %v from rank %d", from.header.Rank, target, got, r.Args, r.Peer)
		}
	}
}

// sent returns how many messages a node has sent to another.
func (j *testJob) sent(from, to int) uint64 {
	job := j.nodes[from].job
	job.sending.Lock()
	defer job.sending.Unlock()
	return job.counters.flow.Sent[to]
}

// received returns how many messages a node has received from another.
func (j *testJob) received(at, from int) uint64 {
	job := j.nodes[at].job
	job.receiver.mu.Lock()
	defer job.receiver.mu.Unlock()
	return job.counters.flow.Received[from]
}

// Messages in flight when a connection breaks are reported lost as soon as there is a new one,
// although no other message follows.
func TestLostMessages(t *testing.T) {
	for _, from := range []int{0, 1} { // either may be the one that connects
		t.Run(fmt.Sprint("from node", from), func(t *testing.T) {
			j := open(t, 2, 1)
			a, b := j.join(from), j.join(1-from)
			pass(t, a, b, 0, 5)
			j.noFault()
			j.lose(0, 1, true)
			for i := range 3 {
				a.post(1-from, 1, uint64(i), nil)
			}
			check.Await(t, "message on its way", func() bool { return j.sent(from, 1-from) == 8 })
			j.noFault() // the loss cannot be known yet
			j.lose(0, 1, false)
			j.fault(fmt.Sprintf("messages between node%d and node%d were lost", from, 1-from), "8 were sent, 5 came")
			if r, ok := b.next(0); ok {
				t.Errorf("a message came: %+v", r)
			}
		})
	}
}

// A message behind lost ones is not delivered, and reveals the loss.
func TestMessageBehindLostOnes(t *testing.T) {
	j := open(t, 2, 2)
	a, b, other := j.join(0), j.join(2), j.join(1)
	j.lose(0, 1, true)
	a.post(2, 1, 1, nil)
	check.Await(t, "message on its way", func() bool { return j.sent(0, 1) == 1 })
	j.net.mu.Lock()
	clear(j.net.cut)
	j.net.mu.Unlock()
	a.post(2, 1, 2, nil)
	j.fault("1 were sent, 0 came")
	if r, ok := b.next(0); ok {
		t.Errorf("a message came: %+v", r)
	}
	pass(t, a, other, 0, 10) // between ranks of one node, nothing is lost
}

// A connection that breaks with nothing in flight does no harm, and neither does resending the
// state at any time.
func TestBreaksWithoutLoss(t *testing.T) {
	const n = 3000
	j := open(t, 3, 1)
	apps := []*app{j.join(0), j.join(1), j.join(2)}
	var all, breaks sync.WaitGroup
	stop := make(chan struct{})
	breaks.Go(func() {
		for {
			for a := range 3 {
				select {
				case <-stop:
					return
				case <-time.After(time.Millisecond):
					j.nodes[a].engine.Broken(id.Node((a + 1) % 3))
					j.nodes[(a+1)%3].engine.Broken(id.Node(a))
				}
			}
		}
	})
	for rank, a := range apps {
		all.Go(func() {
			source, target := (rank+2)%3, (rank+1)%3
			deadline := time.Now().Add(20 * time.Second)
			for sent, got := 0, 0; got < n || sent < n; {
				for sent < n && a.post(target, 1, uint64(sent), make([]byte, 500)) {
					sent++
				}
				r, ok := a.next(time.Millisecond)
				if !ok && time.Now().Before(deadline) {
					continue
				}
				if !ok || int(r.Peer) != source || r.Args[0] != uint64(got) {
					t.Errorf("rank %d: message %d came as %v %+v", rank, got, ok, r)
					return
				}
				got++
			}
			for range 20 {
				if !a.barrier(20 * time.Second) {
					t.Errorf("rank %d is stuck in a barrier", rank)
					return
				}
			}
		})
	}
	all.Wait()
	close(stop)
	breaks.Wait()
	j.noFault()
}

// A new connection resends everything but messages.
func TestLostFramesAreToldAgain(t *testing.T) {
	barrier := func(t *testing.T, near, far int) { // one of the nodes is the other's parent
		j := open(t, 4, 1)
		j.lose(near, far, true)
		done := make(chan bool, 4)
		for rank := range 4 {
			a := j.join(rank)
			go func() { done <- a.barrier(20 * time.Second) }()
		}
		check.Await(t, "arrival", func() bool {
			job := j.nodes[far].job
			job.mu.Lock()
			defer job.mu.Unlock()
			return job.barrier.Reported() == 1
		})
		if len(done) > 0 {
			t.Error("a rank left the barrier")
		}
		j.lose(near, far, false)
		for range 4 {
			if !<-done {
				t.Error("a rank is stuck in the barrier")
			}
		}
		j.noFault()
	}
	t.Run("barrier at the root", func(t *testing.T) { barrier(t, 0, 1) })
	t.Run("barrier at a child", func(t *testing.T) { barrier(t, 1, 3) })
	t.Run("release", func(t *testing.T) {
		j := open(t, 2, 1)
		root, child := j.join(0), j.join(1)
		// The child has arrived, and then receives nothing more.
		done := make(chan bool, 2)
		go func() { done <- child.barrier(20 * time.Second) }()
		check.Await(t, "arrival", func() bool {
			job := j.nodes[0].job
			job.mu.Lock()
			defer job.mu.Unlock()
			return job.counters.barrier.Arrived[0] == 1
		})
		j.lose(0, 1, true)
		if !root.barrier(20 * time.Second) {
			t.Fatal("the root is stuck in the barrier")
		}
		if len(done) > 0 {
			t.Error("the child left the barrier")
		}
		j.lose(0, 1, false)
		if !<-done {
			t.Error("the child is stuck in the barrier")
		}
		j.noFault()
	})
	t.Run("window", func(t *testing.T) {
		j := open(t, 2, 1)
		a, b := j.join(0), j.join(1)
		posted := fill(t, j, a, 1)
		j.lose(0, 1, true)
		count := 0
		for ; count < posted; count++ {
			if _, ok := b.next(100 * time.Millisecond); !ok {
				break
			}
		}
		if count == posted {
			t.Error("all messages came while frames were lost")
		}
		j.lose(0, 1, false)
		for ; count < posted; count++ {
			if r, ok := b.next(time.Minute); !ok || r.Args[0] != uint64(count) {
				t.Fatalf("message %d came as %v %+v", count, ok, r)
			}
		}
		j.noFault()
	})
	t.Run("end", func(t *testing.T) {
		j := open(t, 2, 1)
		a := j.join(0)
		j.join(1)
		j.lose(0, 1, true)
		j.nodes[1].job.Ended(1)
		a.barrier(0)
		check.Await(t, "end", func() bool {
			job := j.nodes[1].job
			job.mu.Lock()
			defer job.mu.Unlock()
			return len(job.barrier.Ended()) == 1
		})
		j.noFault()
		j.lose(0, 1, false)
		j.fault("rank 1 on node1 has ended", "rank 0 on node0 waits for it in a barrier")
	})
	t.Run("beginning", func(t *testing.T) {
		j := openWith(t, 2, 1, JobConfig{Job: 7, Secret: []byte("12345678"), InitTimeout: 10 * time.Millisecond})
		j.lose(0, 1, true)
		j.join(0)
		time.Sleep(20 * time.Millisecond) // as far as its node knows, rank 1 need not have joined
		j.noFault()
		j.lose(0, 1, false)
		j.fault("rank 1 on node1 has not joined")
	})
}

// fill sends from a rank to one that does not read until nothing moves any more, and returns the
// number of messages posted.
func fill(t testing.TB, j *testJob, a *app, target int) (posted int) {
	t.Helper()
	payload := make([]byte, 1000)
	from := int(j.config.Nodes[a.header.Rank])
	check.Await(t, "end of what can be sent", func() bool {
		closed, before := j.windowIsClosed(from, id.Rank(target), uint64(frame.MessageHeader+len(payload))), posted
		for a.post(target, 1, uint64(posted), payload) {
			posted++
		}
		return closed && posted == before
	})
	return posted
}

// windowIsClosed reports whether a node cannot send a message to a rank, neither now nor once the
// messages in flight have arrived.
func (j *testJob) windowIsClosed(from int, target id.Rank, cost uint64) bool {
	to := int(j.config.Nodes[target])
	sender, receiver := j.nodes[from].job, j.nodes[to].job
	sender.sending.Lock()
	defer sender.sending.Unlock()
	if sender.counters.flow.Sent[to] != j.received(to, from) {
		return false
	}
	channel := flow.ChannelOf(target, 0)
	at := receiver.stream(channel, from)
	here := sender.stream(channel, from)
	sender.mu.Lock()
	defer sender.mu.Unlock()
	return !sender.flow.HasRoom(channel, cost) && here.Reserved == 0 && (from == to || here.Granted == at.Reported)
}

// stream returns the state of a stream as a node sees it.
func (j *Job) stream(c flow.Channel, member int) flow.Status {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.flow.Status(flow.Stream{Channel: c, Member: member})
}
