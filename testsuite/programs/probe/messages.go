package main

import (
	"bytes"
	"context"
	"fmt"
	"time"

	"margay/lib/margay"
)

// ctx bounds everything that this program waits for.
var ctx = context.Background()

func join() (context.Context, *margay.Job, error) {
	job, err := margay.Init()
	return ctx, job, err
}

// barrier [RANK] enters barriers; the named rank never joins.
func barrier(args []string) error {
	if len(args) > 0 && args[0] == rank() {
		time.Sleep(time.Hour)
	}
	ctx, job, err := join()
	if err != nil {
		return err
	}
	for range 10 {
		if err := job.Barrier(ctx); err != nil {
			return err
		}
	}
	fmt.Println("rank", job.Rank(), "passed 10 barriers")
	return job.Finalize(ctx)
}

// meet N PAUSE passes N barriers and pauses so many milliseconds before each. Before a barrier each
// rank sends a message to the next one, which must have handled it after the barrier.
func meet(args []string) error {
	ctx, job, err := join()
	if err != nil {
		return err
	}
	handled := 0
	job.Handle(1, func(margay.Message) { handled++ })
	n, pause := number(args, 0, 100), time.Duration(number(args, 1, 0))*time.Millisecond
	for i := range n {
		if i == min(n, 50)-1 && job.Rank() == 0 {
			fmt.Println("meeting") // all ranks have their channels
		}
		time.Sleep(pause)
		if err := job.Send(ctx, (job.Rank()+1)%job.Size(), 1, [2]uint64{}, nil); err != nil {
			return err
		}
		if err := job.Barrier(ctx); err != nil {
			return err
		}
		if handled <= i {
			return fmt.Errorf("after barrier %d, %d messages have been handled", i+1, handled)
		}
	}
	fmt.Println("rank", job.Rank(), "has met", n, "times")
	return job.Finalize(ctx)
}

// leave RANK has one rank end while the others wait in a barrier.
func leave(args []string) error {
	ctx, job, err := join()
	if err != nil {
		return err
	}
	if err := job.Barrier(ctx); err != nil {
		return err
	}
	if args[0] == rank() {
		return nil
	}
	return job.Barrier(ctx)
}

// pingpong N PAUSE_MS [BYTES] lets rank 0 exchange messages with every other rank, and checks their
// order. Each tenth message from rank 0 has so many bytes.
func pingpong(args []string) error {
	ctx, job, err := join()
	if err != nil {
		return err
	}
	const ping, pong = 1, 2
	got := 0
	next := make([]uint64, job.Size())
	size := number(args, 2, 0)
	payload := func(i uint64) []byte {
		b := fmt.Append(nil, "number ", i)
		for n := uint64(0); i%10 == 9 && len(b) < size; n++ {
			b = append(b, byte(i+n+n>>8))
		}
		return b
	}
	job.Handle(ping, func(m margay.Message) {
		if !bytes.Equal(m.Payload, payload(m.Args[0])) {
			panic(fmt.Sprintf("message %d has %d bytes, others than were sent", m.Args[0], len(m.Payload)))
		}
		if ok, err := job.Post(m.Source, pong, m.Args, fmt.Append(nil, "number ", m.Args[0])); !ok || err != nil {
			panic(fmt.Sprint("no room for an answer: ", err))
		}
	})
	job.Handle(pong, func(m margay.Message) {
		if m.Args[0] != next[m.Source] || string(m.Payload) != fmt.Sprint("number ", m.Args[0]) {
			panic(fmt.Sprintf("message %d %q from rank %d, expected %d", m.Args[0], m.Payload, m.Source, next[m.Source]))
		}
		next[m.Source]++
		got++
	})
	if err := job.Barrier(ctx); err != nil {
		return err
	}
	if job.Rank() == 0 {
		n := number(args, 0, 100)
		fmt.Println("playing")
		for i := range n {
			for other := 1; other < job.Size(); other++ {
				if err := job.Send(ctx, other, ping, [2]uint64{uint64(i)}, payload(uint64(i))); err != nil {
					return err
				}
			}
			for got < (i+1)*(job.Size()-1) {
				if _, err := job.Wait(ctx); err != nil {
					return err
				}
			}
			time.Sleep(time.Duration(number(args, 1, 0)) * time.Millisecond)
		}
		fmt.Println(got, "messages came back")
	}
	return job.Finalize(ctx)
}

// sift N lets each rank send N messages to the next one, for three handlers in turn, some of them
// long, and prints how many each handler has got, and the sum of their numbers. It does not matter
// which of them are lost.
func sift(args []string) error {
	ctx, job, err := join()
	if err != nil {
		return err
	}
	var handled, sum [4]uint64
	for handler := range handled {
		job.Handle(handler, func(m margay.Message) {
			if len(m.Payload) != sifted(m.Args[0]) {
				panic(fmt.Sprintf("message %d has %d bytes", m.Args[0], len(m.Payload)))
			}
			handled[handler]++
			sum[handler] += m.Args[0]
		})
	}
	if err := job.Barrier(ctx); err != nil {
		return err
	}
	payload := make([]byte, sifted(0))
	n := uint64(number(args, 0, 100))
	for i := range n {
		if err := job.Send(ctx, (job.Rank()+1)%job.Size(), 1+int(i%3), [2]uint64{i}, payload[:sifted(i)]); err != nil {
			return err
		}
		for range 10 {
			if i != n/6 { // the rest takes the channels that the node kernels make then
				break
			}
			time.Sleep(100 * time.Millisecond)
			if err := job.Barrier(ctx); err != nil {
				return err
			}
		}
	}
	if err := job.Barrier(ctx); err != nil {
		return err
	}
	fmt.Println("rank", job.Rank(), "has handled", handled[1:], "sums", sum[1:])
	return job.Finalize(ctx)
}

// sifted is the size of a message of sift.
func sifted(i uint64) int {
	if i%20 < 3 {
		return 3000
	}
	return int(i % 100)
}
