// Command hello prints the node of each rank of a job, and sends a greeting from each rank to the
// next one.
package main

import (
	"context"
	"fmt"
	"log"
	"time"

	"margay/lib/margay"
)

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	job, err := margay.Init()
	if err != nil {
		log.Fatal(err)
	}
	greeted := false
	job.Handle(1, func(m margay.Message) {
		greeted = true
		fmt.Printf("rank %d of %d on node %d: %s from rank %d on node %d\n", job.Rank(), job.Size(), job.Node(), m.Payload, m.Source, m.Node)
	})
	if err := job.Barrier(ctx); err != nil { // now every rank has its handler
		log.Fatal(err)
	}
	if err := job.Send(ctx, (job.Rank()+1)%job.Size(), 1, [2]uint64{}, []byte("hello")); err != nil {
		log.Fatal(err)
	}
	if err := job.WaitFor(ctx, func() bool { return greeted }); err != nil { // it may have come in the barrier already
		log.Fatal(err)
	}
	if err := job.Finalize(ctx); err != nil {
		log.Fatal(err)
	}
}
