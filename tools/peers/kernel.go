package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"

	"margay/nimble/bench"
	"margay/nimble/driver"
	"margay/nimble/engine"
	"margay/nimble/engine/linux"
	"margay/nimble/memory"
	"margay/nimble/object"
	"margay/nimble/state"
	"margay/nimble/verify"
)

// question is what a child of this program is asked, by a line of JSON: to load
// a program, or to run one that is loaded.
type question struct {
	Program string
	Runs    int // 0: load it
}

// answer is the line of JSON that it gets.
type answer struct {
	Took  time.Duration // to load
	Size  int           // bytes of machine code
	R0    uint64
	Each  float64 // nanoseconds of a run
	Error string
}

// patience is how long an answer may take.
const patience = time.Minute

// child is a process that uses the kernel. If the kernel hangs, it hangs alone.
type child struct {
	ctx     context.Context
	argv    []string
	wait    time.Duration  // for an answer
	stdin   io.WriteCloser // nil: not started yet
	stdout  *os.File
	answers *json.Decoder
	kill    func()
	err     error // why there are no further answers
}

// kernelContender makes a contender of the kernel of this machine, which argv
// uses. The function ends it.
func kernelContender(ctx context.Context, argv ...string) (bench.Contender, func() error) {
	c := &child{ctx: ctx, argv: argv, wait: patience}
	return bench.Contender{Name: kernel, Bounded: true, Once: true, Insert: c.insert}, c.end
}

func (c *child) start() error {
	ctx, cancel := context.WithCancel(c.ctx)
	cmd := exec.CommandContext(ctx, c.argv[0], c.argv[1:]...)
	// Signals with which Go preempts would end a row of runs early.
	cmd.Env = append(os.Environ(), "GODEBUG=asyncpreemptoff=1")
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		cancel()
		return err
	}
	stdout, write, err := os.Pipe() // unlike the one of StdoutPipe, it has deadlines
	if err != nil {
		cancel()
		return err
	}
	cmd.Stdout = write
	err = cmd.Start()
	write.Close()
	if err != nil {
		cancel()
		stdout.Close()
		return err
	}
	c.stdin, c.stdout, c.answers, c.kill = stdin, stdout, json.NewDecoder(stdout), cancel
	return nil
}

// ask asks the child, which is started if it has not been. After no answer
// there is no other.
func (c *child) ask(q question) (answer, error) {
	if c.stdin == nil && c.err == nil {
		c.err = c.start()
	}
	if c.err != nil {
		return answer{}, c.err
	}
	line, err := json.Marshal(q)
	if err == nil {
		_, err = c.stdin.Write(append(line, '\n'))
	}
	if err != nil {
		c.err = err
		return answer{}, err
	}
	var a answer
	if err = c.stdout.SetReadDeadline(time.Now().Add(c.wait)); err == nil {
		err = c.answers.Decode(&a)
	}
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		c.err = fmt.Errorf("no answer within %v", c.wait)
		c.kill()
		return answer{}, c.err
	case err != nil:
		c.kill() // it ended too early, or answered nonsense; like at the end, it is not waited for
		c.err = errors.New("the process that uses the kernel has ended")
		return answer{}, c.err
	case a.Error != "":
		return a, errors.New(a.Error)
	}
	return a, nil
}

// end ends the child. It is not waited for: it may hang in the kernel.
func (c *child) end() error {
	if c.stdin == nil {
		return nil
	}
	defer c.kill()
	if err := c.stdin.Close(); !errors.Is(err, os.ErrClosed) {
		return err
	}
	return nil
}

func (c *child) insert(p *bench.Program) (*bench.Inserted, error) {
	a, err := c.ask(question{Program: p.Name})
	if err != nil {
		return nil, err
	}
	return &bench.Inserted{Runner: loaded{c, p.Name}, Took: a.Took, Size: a.Size}, nil
}

// loaded is a program that the child has loaded.
type loaded struct {
	*child
	name string
}

// Run implements bench.Runner.
func (l loaded) Run(n int) (bench.Turn, error) {
	a, err := l.ask(question{Program: l.name, Runs: n})
	return bench.Turn{R0: a.R0, Each: a.Each}, err
}

// Close implements bench.Runner. The program stays loaded until the child ends.
func (l loaded) Close() error { return nil }

// serveKernel is the child: it answers until the questions end.
func serveKernel(in io.Reader, out io.Writer) error {
	k := &kernelRuns{programs: make(map[string]*kernelRun)}
	for d, e := json.NewDecoder(in), json.NewEncoder(out); ; {
		var q question
		if err := d.Decode(&q); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		a, err := k.answer(q)
		if err != nil {
			a.Error = err.Error()
		}
		if err := e.Encode(a); err != nil {
			return err
		}
	}
}

// kernelRuns are the programs that are loaded, by name. They stay until the
// process ends.
type kernelRuns struct{ programs map[string]*kernelRun }

// kernelRun is a program with its memory.
type kernelRun struct {
	code    engine.Code
	machine *engine.Machine
}

func (k *kernelRuns) answer(q question) (a answer, err error) {
	if q.Runs == 0 {
		r, took, err := loadProgram(q.Program)
		if err != nil {
			return a, err
		}
		k.programs[q.Program] = r
		a.Took = took
		if sized, ok := r.code.(engine.Sized); ok {
			a.Size = sized.Size()
		}
		if a.Size == 0 {
			return a, errors.New("the kernel has not made machine code of it")
		}
		return a, nil
	}
	r, ok := k.programs[q.Program]
	if !ok {
		return a, fmt.Errorf("program %q is not loaded", q.Program)
	}
	watch := bench.Start()
	a.R0, err = r.code.(linux.Repeater).Repeat(r.machine, q.Runs)
	a.Each = float64(watch.Stop()) / float64(q.Runs)
	return a, err
}

// loadProgram loads the bounded form of a program, as a trusted one: then the
// kernel does not guard it against speculation either.
func loadProgram(name string) (*kernelRun, time.Duration, error) {
	p, err := bench.Find(name)
	if err != nil {
		return nil, 0, err
	}
	spec, err := p.Bounded().Spec()
	if err != nil {
		return nil, 0, err
	}
	services, err := driver.Services("test")
	if err != nil {
		return nil, 0, err
	}
	e, err := linux.New()
	if err != nil {
		return nil, 0, err
	}
	watch := bench.Start()
	r, err := load(e, spec, verify.Config{Services: services, Trusted: true, Context: p.Context()})
	took := watch.Stop()
	if err != nil {
		return nil, 0, err
	}
	return r, took, r.give(p.Memory)
}

// load does what nimble.Insert does, for code that is not run one event at a
// time.
func load(e engine.Engine, spec *object.Spec, config verify.Config) (*kernelRun, error) {
	program, err := verify.Verify(spec, config)
	if err != nil {
		return nil, err
	}
	var maps []*state.Map
	for _, spec := range spec.Maps {
		m, err := state.New(spec, state.Options{})
		if err != nil {
			return nil, err
		}
		maps = append(maps, m)
	}
	r := &kernelRun{}
	if r.code, err = e.Thread(program, maps); err != nil {
		return nil, err
	}
	r.machine, err = engine.NewMachine(program, maps, 1)
	return r, err
}

// give makes bytes the context of the program.
func (r *kernelRun) give(b []byte) error {
	if len(b) == 0 {
		return nil
	}
	context, err := memory.Map("context", len(b))
	if err != nil {
		return err
	}
	copy(context.Bytes(), b)
	r.machine.SetContext(context.Region(true))
	r.machine.Args = [5]uint64{r.machine.Context().Base, r.machine.Context().Length}
	return nil
}
