// Command offload adds numbers of all ranks in the node kernels: an all-reduce by an extension.
//
//	margay run -n 8 ./offload [CALLS]
//
// The C example beside this one says how, and does the same.
package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log"
	"os"
	"slices"
	"strconv"
	"syscall"
	"time"

	"margay/ext/message/allreduce"
	"margay/lib/margay"
)

const (
	values = 4
	part   = 10 // the handler of contributions
	result = part + 2
)

func main() {
	log.SetFlags(0)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	if err := run(ctx, os.Args[1:]); err != nil {
		log.Fatal("offload: ", err)
	}
}

func run(ctx context.Context, args []string) error {
	calls := 1000
	if len(args) > 0 {
		n, err := strconv.Atoi(args[0])
		if err != nil || n < 1 {
			return fmt.Errorf("%q is not a number of calls", args[0])
		}
		calls = n
	}
	job, err := margay.Init()
	if err != nil {
		return err
	}
	o := offload{Job: job}
	job.Handle(result, o.handle)
	library, byLibrary, err := o.measure(ctx, calls, o.byLibrary)
	if err != nil {
		return err
	}
	extension, err := o.insert()
	if err != nil {
		return err
	}
	offloaded, byExtension, err := o.measure(ctx, calls, o.byExtension) // its barrier: all nodes have the extension
	switch {
	case err != nil:
		return err
	case !slices.Equal(library, offloaded):
		return errors.New("the extension has computed a wrong result")
	}
	if err := job.Barrier(ctx); err != nil {
		return err
	}
	if extension != nil {
		if err := extension.Remove(); err != nil {
			return err
		}
	}
	if err := errors.Join(o.print(ctx, "library", byLibrary, calls), o.print(ctx, "extension", byExtension, calls)); err != nil {
		return err
	}
	if job.Rank() == 0 {
		fmt.Printf("%d all-reduces of %d ranks, nodes: %d, equal results, fingerprint %016x\n", calls, job.Size(), job.Nodes(), library[0])
	}
	return job.Finalize(ctx)
}

// offload is a rank.
type offload struct {
	*margay.Job
	calls, results uint64 // started, finished
	values         [values]uint64
	bad            bool
}

// insert inserts the extension, if this is the first rank of its node.
func (o *offload) insert() (*margay.Extension, error) {
	if o.LocalRank() != 0 {
		return nil, nil
	}
	return o.Insert(margay.ExtensionSpec{Name: "allreduce", Object: allreduce.Object, Constants: map[string]uint64{allreduce.Handler: part}})
}

// handle takes a result of the extension.
func (o *offload) handle(m margay.Message) {
	if _, err := binary.Decode(m.Payload, binary.LittleEndian, &o.values); err != nil || !m.Extension || m.Args != [2]uint64{o.results, allreduce.Sum} {
		o.bad = true
	}
	o.results++
}

func (o *offload) byExtension(ctx context.Context, in, out []uint64) error {
	payload, err := binary.Append(nil, binary.LittleEndian, in)
	if err != nil {
		return err
	}
	if err := o.Send(ctx, o.Rank(), part, [2]uint64{o.calls, allreduce.Sum}, payload); err != nil {
		return err
	}
	o.calls++
	if err := o.WaitFor(ctx, func() bool { return o.results == o.calls }); err != nil {
		return err
	}
	if o.bad {
		return errors.New("the extension has sent a result that makes no sense")
	}
	copy(out, o.values[:])
	return nil
}

func (o *offload) byLibrary(ctx context.Context, in, out []uint64) error {
	return margay.AllReduce(ctx, o.Job, in, out, margay.Sum)
}

// cost is what calls take.
type cost struct{ time, processor time.Duration }

// measure makes calls and returns what they cost. Their results are added up in sums.
func (o *offload) measure(ctx context.Context, calls int, reduce func(ctx context.Context, in, out []uint64) error) (sums []uint64, c cost, err error) {
	if err := o.Barrier(ctx); err != nil {
		return nil, c, err
	}
	sums = make([]uint64, values)
	in, out := make([]uint64, values), make([]uint64, values)
	begin, processor := time.Now(), processorTime()
	for i := range calls {
		for k := range in {
			in[k] = uint64(o.Rank()+1) * uint64(i+k+1)
		}
		if err := reduce(ctx, in, out); err != nil {
			return nil, c, err
		}
		for k := range sums {
			sums[k] = sums[k]*31 + out[k]
		}
	}
	return sums, cost{time.Since(begin), processorTime() - processor}, nil
}

// processorTime returns the processor time of this process.
func processorTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// print prints the cost of a call.
func (o *offload) print(ctx context.Context, how string, c cost, calls int) error {
	all := []int64{int64(c.processor)}
	if err := margay.AllReduce(ctx, o.Job, all, all, margay.Sum); err != nil {
		return err
	}
	if o.Rank() == 0 {
		us := func(d float64) float64 { return d / 1e3 / float64(calls) }
		fmt.Printf("%-12s %8.1f us a call, %8.1f us of it on the core of a rank\n", how, us(float64(c.time)), us(float64(all[0])/float64(o.Size())))
	}
	return nil
}
