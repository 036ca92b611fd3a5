package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"margay/cluster/machine"
	"margay/kernel/abi/node"
	"margay/tools/margay/bench/fabric"
	"margay/tools/margay/job"
)

// fabricMachine is the machine of a place, for Margay's contenders.
type fabricMachine struct {
	*benchMachine
	place   fabric.Place
	program string
	fabric  string // of its nodes
	kernels nodeKernels
}

// coresEach is the number of cores of each node. With two, the first cores of neighbouring nodes
// are on different CPUs of a host with two.
const coresEach = 2

// newFabricMachine makes the machine of a place.
func (a commands) newFabricMachine(ctx context.Context, place fabric.Place, f fabricFlags) (*fabricMachine, error) {
	m := &fabricMachine{benchMachine: a.newMachine(place.Name), place: place, program: f.program, fabric: f.fabric}
	spec := machine.Spec{
		Substrate: node.Hosted, Program: f.node, JobInit: f.jobInit, Nodes: place.Nodes, Cores: coresEach, MemoryMiB: 512,
		Fabric: f.fabric,
	}
	if err := m.up(ctx, spec); err != nil {
		return nil, err
	}
	d, err := m.Dir()
	if err == nil {
		holder, _ := d.Holder()
		m.kernels, err = findNodeKernels(holder)
	}
	if err == nil && len(m.kernels) != place.Nodes {
		err = fmt.Errorf("machine %s: found %d node kernels of %d nodes", m.Machine, len(m.kernels), place.Nodes)
	}
	if err != nil {
		return nil, errors.Join(err, m.end(context.WithoutCancel(ctx)))
	}
	return m, nil
}

// contenders are Margay's: one for each mode of waiting.
func (m *fabricMachine) contenders() (all []fabric.Contender) {
	for _, waiting := range []string{"poll", "block"} {
		run := func(ctx context.Context, c fabric.Case, length time.Duration) (*fabric.Report, error) {
			return m.measureCase(ctx, waiting, c, length)
		}
		name := fabric.Ours + " " + waiting
		if m.fabric != machine.FabricAuto {
			name += ", " + m.fabric
		}
		all = append(all, fabric.Contender{Name: name, Run: run})
	}
	return all
}

// measureCase runs a case as a job.
func (m *fabricMachine) measureCase(ctx context.Context, waiting string, c fabric.Case, length time.Duration) (*fabric.Report, error) {
	w := &stopwatch{read: m.kernels.processorTime}
	m.Stdout = w
	flags := job.Flags{Ranks: m.place.Ranks, Nodes: m.place.Nodes, PerCore: m.place.PerCore, Stdin: "none", Quiet: true}
	if err := m.run(ctx, flags, []string{m.program, waiting, c.Operation, fmt.Sprint(c.Bytes), fmt.Sprint(length.Milliseconds())}); err != nil {
		return nil, err
	}
	r, err := fabric.ReadReport(w.output.Bytes())
	if err != nil {
		return nil, err
	}
	r.Kernels = w.took
	return r, nil
}

// stopwatch keeps the output of a program, and reads a clock when the program prints a line "begin"
// and when it prints "end".
type stopwatch struct {
	read   func() time.Duration
	output bytes.Buffer
	seen   int // bytes of the complete lines that were looked at
	start  time.Duration
	took   time.Duration
}

func (w *stopwatch) Write(text []byte) (int, error) {
	n, err := w.output.Write(text)
	for {
		line, _, complete := bytes.Cut(w.output.Bytes()[w.seen:], []byte("\n"))
		if !complete {
			return n, err
		}
		w.seen += len(line) + 1
		switch string(line) {
		case "begin":
			w.start = w.read()
		case "end":
			w.took = w.read() - w.start
		}
	}
}
