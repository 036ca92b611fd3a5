package margay_test

import (
	"context"
	"fmt"
	"log"

	"margay/lib/margay"
)

// Every rank sends its number to rank 0, which prints the sum. margay run starts the ranks.
func Example() {
	ctx := context.Background()
	job, err := margay.Init()
	if err != nil {
		log.Fatal(err)
	}
	const add = 1 // the handler
	sum, arrived := uint64(0), 0
	job.Handle(add, func(m margay.Message) {
		sum += m.Args[0]
		arrived++
	})
	if err := job.Barrier(ctx); err != nil { // every rank has its handler
		log.Fatal(err)
	}
	if err := job.Send(ctx, 0, add, [2]uint64{uint64(job.Rank())}, nil); err != nil {
		log.Fatal(err)
	}
	if job.Rank() == 0 {
		if err := job.WaitFor(ctx, func() bool { return arrived == job.Size() }); err != nil {
			log.Fatal(err)
		}
		fmt.Println("the sum is", sum)
	}
	if err := job.Finalize(ctx); err != nil {
		log.Fatal(err)
	}
}
