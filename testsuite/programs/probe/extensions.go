package main

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"margay/lib/margay"
)

// insert FILE tries to insert an extension and prints the result.
func insert(args []string) error {
	_, job, err := join()
	if err != nil {
		return err
	}
	object, err := os.ReadFile(args[0])
	if err != nil {
		return err
	}
	x, err := job.Insert(margay.ExtensionSpec{Object: object})
	if err != nil {
		fmt.Println("refused:", err)
		return nil
	}
	fmt.Println("inserted as", x.Handle())
	return nil
}

// compose CALLEE CALLER inserts two extensions, passes the second the handle of the first, sends a
// message and prints when it is delivered.
func compose(args []string) error {
	ctx, job, err := join()
	if err != nil {
		return err
	}
	callee, err := insertFile(job, args[0], margay.ExtensionSpec{Name: "callee"})
	if err != nil {
		return err
	}
	helper := map[string]uint64{"helper": uint64(callee.Handle())}
	if _, err := insertFile(job, args[1], margay.ExtensionSpec{Name: "caller", Constants: helper}); err != nil {
		return err
	}
	job.Handle(0, func(margay.Message) { fmt.Println("delivered") })
	if err := job.Send(ctx, job.Rank(), 0, [2]uint64{2}, nil); err != nil {
		return err
	}
	return job.Finalize(ctx)
}

// insertFile inserts the extension in a file.
func insertFile(job *margay.Job, file string, spec margay.ExtensionSpec) (*margay.Extension, error) {
	var err error
	if spec.Object, err = os.ReadFile(file); err != nil {
		return nil, err
	}
	return job.Insert(spec)
}

// spread FILE N lets the ranks send N messages each, to any rank. An extension sends them on to the
// ranks that own their numbers.
func spread(args []string) error {
	ctx, job, err := join()
	if err != nil {
		return err
	}
	const handler = 9
	if job.LocalRank() == 0 {
		_, err := insertFile(job, args[0], margay.ExtensionSpec{Constants: map[string]uint64{"handler": handler, "ranks": uint64(job.Size())}})
		if err != nil {
			return err
		}
	}
	came := make([]int, job.Size())
	job.Handle(handler, func(m margay.Message) {
		if m.Args[0]%uint64(job.Size()) != uint64(job.Rank()) || m.Args[1] != uint64(m.Source) || job.NodeOf(m.Source) != m.Node {
			panic(fmt.Sprintf("rank %d got %+v", job.Rank(), m))
		}
		came[m.Source]++
	})
	if err := job.Barrier(ctx); err != nil {
		return err
	}
	for i := range number(args, 1, 1000) {
		// Not to the owner's neighbour each time: i goes by eights, and the targets by sevens.
		if err := job.Send(ctx, i%7%job.Size(), handler, [2]uint64{uint64(i), uint64(job.Rank())}, nil); err != nil {
			return err
		}
	}
	if err := job.Barrier(ctx); err != nil {
		return err
	}
	sum := 0
	for _, n := range came {
		sum += n
	}
	fmt.Printf("rank %d owns %d messages, %d of each rank\n", job.Rank(), sum, slices.Max(came))
	if slices.Min(came) != slices.Max(came) {
		return fmt.Errorf("messages came unevenly: %v", came)
	}
	return job.Finalize(ctx)
}

// upcalls FILE N has rank 0 interrupt the others N times while they compute.
func upcalls(args []string) error {
	ctx, job, err := join()
	if err != nil {
		return err
	}
	const handler = 200
	if job.LocalRank() == 0 {
		if _, err := insertFile(job, args[0], margay.ExtensionSpec{}); err != nil {
			return err
		}
	}
	n := number(args, 1, 1000)
	var came atomic.Int64
	job.Handle(handler, func(m margay.Message) {
		if m.Args[0] != uint64(came.Add(1)) {
			panic(fmt.Sprintf("upcall %d came as %d", came.Load(), m.Args[0]))
		}
	})
	if err := job.Barrier(ctx); err != nil {
		return err
	}
	if job.Rank() != 0 {
		job.Upcalls()
		for came.Load() < int64(n) {
		}
		fmt.Printf("rank %d was interrupted for %d messages\n", job.Rank(), came.Load())
		return job.Finalize(ctx)
	}
	for i := range n {
		for rank := 1; rank < job.Size(); rank++ {
			if err := job.Send(ctx, rank, handler, [2]uint64{uint64(i + 1)}, nil); err != nil {
				return err
			}
		}
	}
	return job.Finalize(ctx)
}

// hog FILE SECONDS inserts an extension and sends messages to this rank, as many as there is room
// for, until the time is over.
func hog(args []string) error {
	ctx, job, err := join()
	if err != nil {
		return err
	}
	x, err := insertFile(job, args[0], margay.ExtensionSpec{})
	if err != nil {
		return err
	}
	if err := job.Barrier(ctx); err != nil {
		return err
	}
	fmt.Println("hogging", rank())
	for end := time.Now().Add(time.Duration(number(args, 1, 5)) * time.Second); time.Now().Before(end); {
		if err := job.Send(ctx, job.Rank(), 0, [2]uint64{}, nil); err != nil {
			return err
		}
	}
	s, err := x.Stats()
	if err != nil {
		return err
	}
	fmt.Printf("the extension ran %d instructions, %d faults\n", s.Instructions, s.Faults)
	return job.Finalize(ctx)
}

// extension FILE inserts an extension and sends messages to this rank until the extension is gone.
// Then messages must come through.
func extension(args []string) error {
	ctx, job, err := join()
	if err != nil {
		return err
	}
	x, err := insertFile(job, args[0], margay.ExtensionSpec{})
	if err != nil {
		return err
	}
	arrived := 0
	job.Handle(0, func(margay.Message) { arrived++ })
	var last margay.Stats
	sent := 0
	for ; sent < 1000; sent++ {
		if err := job.Send(ctx, job.Rank(), 0, [2]uint64{}, []byte("message")); err != nil {
			return err
		}
		for arrived <= sent {
			if _, err := job.Wait(ctx); err != nil {
				return err
			}
		}
		s, err := x.Stats()
		if errors.Is(err, margay.ErrNotFound) {
			fmt.Printf("after %d messages the extension is gone; all %d were delivered; last fault %s\n", sent+1, arrived, last.LastFault)
			return job.Finalize(ctx)
		}
		if err != nil {
			return err
		}
		last = s
	}
	fmt.Printf("%d messages, %d delivered, %d faults\n", sent, arrived, last.Faults)
	return job.Finalize(ctx)
}
