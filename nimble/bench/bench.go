// Package bench measures engines by a few small programs.
//
// A measurement is a median of rounds, and in each round every contender has
// its turn, so that what else the machine does hits all of them alike. Only
// ratios within one measurement mean anything: machines are noisy.
package bench

import (
	"cmp"
	"embed"
	"errors"
	"fmt"
	"slices"
	"time"

	"margay/nimble"
	"margay/nimble/asm"
	"margay/nimble/memory"
	"margay/nimble/object"
)

//go:embed programs/*.s
var files embed.FS

// Program is a program to be measured. Its services are those for conformance
// tests of package driver.
type Program struct {
	Name   string
	Memory []byte // what its memory holds
	Want   uint64 // r0
}

// Programs are all programs.
var Programs = []Program{
	{Name: "mod", Want: squares(1_000_000, 97)},
	{Name: "alu", Want: arithmetic(1_000_000)},
	{Name: "primes", Want: 1229},
	{Name: "checksum", Memory: packet(), Want: checksum(packet())},
	{Name: "pick", Memory: []byte{3, 0, 0, 0, 9, 0, 0, 0, 12, 0, 0, 0, 5, 0, 0, 0}, Want: 2},
	{Name: "service", Want: 100_000 * 100_001 / 2},
}

// squares is what mod computes.
func squares(n, m uint64) (sum uint64) {
	for ; n > 0; n-- {
		sum += n * n % m
	}
	return sum
}

// arithmetic is what alu computes.
func arithmetic(n uint64) (x uint64) {
	for ; n > 0; n-- {
		x = (x+3^n)<<1 + n
	}
	return x
}

// packet returns the 1500 bytes that checksum adds up.
func packet() []byte {
	b := make([]byte, 1500)
	for i := range b {
		b[i] = byte(i * 7)
	}
	return b
}

// checksum is what checksum computes.
func checksum(b []byte) (sum uint64) {
	for i := 0; i < len(b); i += 2 {
		sum += uint64(b[i]) | uint64(b[i+1])<<8
	}
	for sum > 0xffff {
		sum = sum&0xffff + sum>>16
	}
	return sum
}

// Spec returns the program as it is inserted.
func (p *Program) Spec() (*object.Spec, error) {
	text, err := files.ReadFile("programs/" + p.Name + ".s")
	if err != nil {
		return nil, err
	}
	program, err := asm.Parse(string(text))
	if err != nil {
		return nil, fmt.Errorf("program %s: %w", p.Name, err)
	}
	return &object.Spec{Name: p.Name, Instructions: program}, nil
}

// Result is what one contender did.
type Result struct {
	Instructions uint64        // of one run
	Run          float64       // nanoseconds of one run, median
	Insert       time.Duration // verification and threading, median
	Err          error         // why there are no figures
}

// PerInstruction returns the nanoseconds of one instruction.
func (r *Result) PerInstruction() float64 {
	if r.Instructions == 0 {
		return 0
	}
	return r.Run / float64(r.Instructions)
}

// contender collects the figures of one way to run a program.
type contender struct {
	runs         int       // in one round; 0: not known yet
	times        []float64 // nanoseconds of one run, in each round
	inserts      []time.Duration
	instructions uint64
	err          error
}

// atLeast is how long the runs of a round take together.
const atLeast = 5 * time.Millisecond

// Measure runs a program as each of the options says and returns their results
// in the same order. The limits are its own.
func (p *Program) Measure(options []nimble.Options, rounds int) ([]Result, error) {
	spec, err := p.Spec()
	if err != nil {
		return nil, err
	}
	var event nimble.Event
	if len(p.Memory) > 0 {
		context, err := memory.Map("context", len(p.Memory))
		if err != nil {
			return nil, err
		}
		defer context.Close()
		copy(context.Bytes(), p.Memory)
		event.Context = context.Region(true)
	}
	contenders, limited := make([]contender, len(options)), slices.Clone(options)
	for i := range limited {
		limited[i].Limits = nimble.Limits{Fuel: 1 << 40, MaxTime: time.Minute}
	}
	for range max(rounds, 1) {
		for i := range contenders {
			contenders[i].round(p, spec, limited[i], event)
		}
	}
	results := make([]Result, len(contenders))
	for i := range contenders {
		results[i] = contenders[i].result()
	}
	return results, nil
}

// round inserts the program, runs it for a while and removes it.
func (c *contender) round(p *Program, spec *object.Spec, o nimble.Options, event nimble.Event) {
	if c.err != nil {
		return
	}
	start := time.Now()
	x, err := nimble.Insert(spec, o)
	if err != nil {
		c.err = err
		return
	}
	c.inserts = append(c.inserts, time.Since(start))
	c.err = errors.Join(c.run(x, p.Want, event), x.Close())
}

// run adds one time to those of c. The first run of all says how many runs are
// enough, and is not counted.
func (c *contender) run(x *nimble.Extension, want uint64, event nimble.Event) error {
	start := time.Now()
	r0, err := x.Run(event)
	if err == nil && r0 != want {
		err = fmt.Errorf("program %s: r0 is %#x, not %#x", x.Name(), r0, want)
	}
	if err != nil {
		return err
	}
	if c.runs == 0 {
		c.runs = 1 + int(atLeast/max(time.Since(start), 1))
		c.instructions = x.Stats().Instructions
	}
	start = time.Now()
	for range c.runs {
		if _, err := x.Run(event); err != nil {
			return err
		}
	}
	c.times = append(c.times, float64(time.Since(start))/float64(c.runs))
	return nil
}

func (c *contender) result() Result {
	if c.err != nil {
		return Result{Err: c.err}
	}
	return Result{Instructions: c.instructions, Run: median(c.times), Insert: median(c.inserts)}
}

func median[T cmp.Ordered](times []T) T {
	slices.Sort(times)
	return times[len(times)/2]
}
