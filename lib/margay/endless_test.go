package margay_test

import (
	"context"
	"fmt"

	"margay/lib/margay"
)

// endless is mode endless OPERATION, as the end-to-end tests need it: ranks make the operation on
// each other until they are ended.
func endless(ctx context.Context, job *margay.Job, name string) error {
	window, err := job.Window(0, 1<<20)
	if err != nil {
		return err
	}
	own := make([]byte, len(window))
	sums := make([]uint64, 1000)
	right := (job.Rank() + 1) % job.Size()
	job.Handle(stormHandler, func(margay.Message) {})
	operation := map[string]func() error{
		"message": func() error { return job.Send(ctx, right, stormHandler, [2]uint64{}, own[:100]) },
		"long":    func() error { return job.Send(ctx, right, stormHandler, [2]uint64{}, own) },
		"put": func() error {
			if err := job.Put(ctx, right, 0, 0, own); err != nil {
				return err
			}
			return job.Quiet(ctx)
		},
		"get":        func() error { return job.Get(ctx, right, 0, 0, own) },
		"add":        func() error { _, err := job.FetchAdd(ctx, right, 0, 0, 1); return err },
		"swap":       func() error { _, err := job.CompareSwap(ctx, right, 0, 0, 0, 1); return err },
		"barrier":    func() error { return job.Barrier(ctx) },
		"broadcast":  func() error { return margay.Broadcast(ctx, job, 0, own[:100_000]) },
		"all-reduce": func() error { return margay.AllReduce(ctx, job, sums, sums, margay.Max) },
	}[name]
	if operation == nil {
		return fmt.Errorf("no operation is called %s", name)
	}
	for range 3 {
		if err := job.Barrier(ctx); err != nil {
			return err
		}
	}
	for i := 0; ; i++ {
		if err := operation(); err != nil {
			return fmt.Errorf("%s %d: %w", name, i, err)
		}
		if i == 3 {
			fmt.Println("playing", job.Rank())
		}
	}
}

// visited is mode visited, as the end-to-end tests need it: all ranks send rank 0 a message at
// once.
func visited(ctx context.Context, job *margay.Job) error {
	came := 0
	job.Handle(stormHandler, func(margay.Message) { came++ })
	if err := job.Send(ctx, 0, stormHandler, [2]uint64{}, nil); err != nil {
		return err
	}
	if err := job.Barrier(ctx); err != nil {
		return err
	}
	if job.Rank() == 0 && came != job.Size() {
		return fmt.Errorf("%d messages have come", came)
	}
	return job.Finalize(ctx)
}
