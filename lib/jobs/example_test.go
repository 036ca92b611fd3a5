package jobs_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"sync"
	"time"

	"margay/lib/jobs"
)

// A hundred jobs of two ranks share the cores of the machine.
func Example() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Hour) // also ends the jobs
	defer cancel()
	machine, err := jobs.Connect(ctx, "")
	if err != nil {
		log.Fatal(err)
	}
	defer machine.Close()
	program, err := jobs.Load("./work", "table.txt")
	if err != nil {
		log.Fatal(err)
	}
	var running sync.WaitGroup
	for i := range 100 {
		running.Go(func() {
			result, err := machine.Run(ctx, jobs.Spec{Program: program, Args: []string{fmt.Sprint(i)}, Ranks: 2, Wait: jobs.Forever, Stderr: os.Stderr})
			if err != nil {
				log.Printf("%d: %v", i, err)
				return
			}
			log.Printf("%d: job %d has run for %v on node%d", i, result.Job, result.Ranks[0].Time, result.Ranks[0].Node)
		})
	}
	running.Wait()
}
