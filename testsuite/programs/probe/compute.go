package main

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// share computes until it is ended, all ranks at the same time. It has left the job's messages.
func share([]string) error {
	ctx, job, err := join()
	if err != nil {
		return err
	}
	if err := job.Finalize(ctx); err != nil { // which waits for the others
		return err
	}
	fmt.Printf("computes %s\n", rank())
	for start := time.Now(); time.Since(start) < time.Hour; {
	}
	return nil
}

// compute [SECONDS] computes for some time, in Go.
func compute(args []string) error {
	fmt.Println("computing")
	end := time.Now().Add(time.Duration(number(args, 0, 1)) * time.Second)
	sum := uint64(0)
	for i := uint64(0); time.Now().Before(end); {
		for range 1_000_000 {
			i++
			sum = sum*6364136223846793005 + i
		}
	}
	fmt.Println("computed", sum)
	return nil
}

// touch MIB [wait] touches so much memory, prints how much of the process's is in huge pages, and
// keeps it until its end.
func touch(args []string) error {
	memory, err := unix.Mmap(-1, 0, number(args, 0, 16)<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return err
	}
	for i := 0; i < len(memory); i += 4096 {
		memory[i] = 1
	}
	text, err := os.ReadFile("/proc/self/smaps_rollup")
	_, rest, _ := strings.Cut(string(text), "AnonHugePages:")
	huge, _, _ := strings.Cut(rest, "kB")
	fmt.Printf("rank %s has %s KiB in huge pages\n", rank(), strings.TrimSpace(huge))
	if len(args) > 1 {
		time.Sleep(time.Hour)
	}
	return err
}

// affinity prints the CPUs that the process may use.
func affinity([]string) error {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return err
	}
	var cpus []int
	for c := range 1024 {
		if set.IsSet(c) {
			cpus = append(cpus, c)
		}
	}
	fmt.Printf("rank %s may use %v\n", rank(), cpus)
	return nil
}

// threads N has N threads at once in each rank.
func threads(args []string) error {
	ctx, job, err := join()
	if err != nil {
		return err
	}
	n := number(args, 0, 10)
	var made sync.WaitGroup
	made.Add(n)
	end := make(chan struct{})
	for range n {
		go func() {
			runtime.LockOSThread()
			made.Done()
			<-end
		}()
	}
	made.Wait()
	defer close(end)
	if err := job.Barrier(ctx); err != nil {
		return err
	}
	fmt.Println("rank", job.Rank(), "has its threads, as user", os.Getuid())
	return job.Finalize(ctx)
}
