package sim

import (
	"crypto/tls"
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"margay/cluster/control"
	"margay/cluster/records"
	"margay/cluster/serve"
	"margay/cluster/trust"
)

// processorTime returns the time of processors that this process has taken.
func processorTime(b *testing.B) time.Duration {
	var used unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &used); err != nil {
		b.Fatal(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

// report reports the time of processors since a begin, for each of some parts.
func report(b *testing.B, begin time.Duration, parts int, unit string) {
	b.ReportMetric(float64(processorTime(b)-begin)/float64(parts), unit)
}

// pair returns the two ends of a connection between a node and serve.
func pair(b *testing.B) (near, far *control.Conn) {
	a, err := trust.NewAuthority("bench")
	if err != nil {
		b.Fatal(err)
	}
	config, err := a.ServeTLS()
	if err != nil {
		b.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer listener.Close()
	dialed := make(chan net.Conn, 1)
	go func() {
		conn, err := net.Dial("tcp", listener.Addr().String())
		if err != nil {
			b.Error(err)
		}
		dialed <- conn
	}()
	accepted, err := listener.Accept()
	if err != nil {
		b.Fatal(err)
	}
	near = control.NewConn(tls.Client(<-dialed, &tls.Config{InsecureSkipVerify: true}))
	far = control.NewConn(tls.Server(accepted, config))
	b.Cleanup(near.Close)
	b.Cleanup(far.Close)
	return near, far
}

// A request of serve to each of 64 nodes and its answer: Work.Message is the time for each of the
// two at one of the two ends.
func BenchmarkMessage(b *testing.B) {
	var conns []*control.Conn
	for range 64 {
		near, far := pair(b)
		go near.Serve(func(f *control.Frame) { near.Answer(f, new(control.Done), nil) })
		go far.Serve(func(*control.Frame) {})
		conns = append(conns, far)
	}
	wave := func() {
		var questions []*control.Question
		for _, conn := range conns {
			questions = append(questions, conn.Ask(&control.Start{Job: 1}))
		}
		for _, q := range questions {
			if _, err := q.Answer(b.Context()); err != nil {
				b.Fatal(err)
			}
		}
	}
	wave() // after it, the connections have shaken hands
	begin := processorTime(b)
	b.ResetTimer()
	for range b.N {
		wave()
	}
	report(b, begin, b.N*len(conns)*4, "processor-ns/message")
}

// The state of a job with many ranks, from serve to margay run: Work.State is the time for each
// rank at one of the two ends.
func BenchmarkState(b *testing.B) {
	const ranks = 10_000
	near, far := pair(b)
	state := new(control.JobState)
	for rank := range uint32(ranks) {
		state.Ranks = append(state.Ranks, &control.RankState{Rank: rank, Node: rank, Core: 1, Ended: true, Exit: new(control.ExitStatus)})
	}
	got := make(chan int)
	go near.Serve(func(f *control.Frame) { got <- len(f.Message().(*control.JobState).Ranks) })
	go far.Serve(func(*control.Frame) {})
	begin := processorTime(b)
	for range b.N {
		if err := far.Send(state); err != nil {
			b.Fatal(err)
		}
		if n := <-got; n != ranks {
			b.Fatalf("%d ranks have come", n)
		}
	}
	report(b, begin, b.N*ranks*2, "processor-ns/rank")
}

// The choice of nodes: Work.Offer is the time for each node.
func BenchmarkAllocate(b *testing.B) {
	const nodes = 100_000
	var free []serve.Free
	for n := range uint32(nodes) {
		free = append(free, serve.Free{Node: n, Total: 1, Cores: cores[:1]})
	}
	begin := processorTime(b)
	for range b.N {
		if places, err := serve.Allocate(&control.JobSpec{Ranks: nodes, PerNode: 1}, free); err != nil || len(places) != nodes {
			b.Fatalf("%d places, %v", len(places), err)
		}
	}
	report(b, begin, b.N*nodes, "processor-ns/node")
}

// The question whether serve has all records of a job, when the last node's are missing:
// Work.Look is twice the time for each node, since serve asks twice when a node has ended.
func BenchmarkLook(b *testing.B) {
	const nodes = 10_000
	relay := records.NewRelay()
	for n := range uint32(nodes) {
		relay.Take(&control.Record{Node: n, Seq: 1, Last: true})
		relay.Ack(n, 1)
	}
	begin := processorTime(b)
	for range b.N {
		for n := range uint32(nodes) {
			if !relay.Complete(n) {
				b.Fatal("the records of a node are missing")
			}
		}
	}
	report(b, begin, b.N*nodes, "processor-ns/node")
}
