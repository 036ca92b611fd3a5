// Package bench measures engines, and what they are compared with, by a few
// small programs.
//
// A measurement is a median of rounds, and every contender runs once in each round, so that other
// load affects all of them alike; times are processor time. Only ratios within one measurement mean
// anything: machines are noisy.
package bench

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Contender is one way to run programs.
type Contender struct {
	Name    string
	Bounded bool // it is given the programs of Bounded
	Once    bool // it inserts a program once, and not in each round
	Insert  func(*Program) (*Inserted, error)
}

// Inserted is a program that is ready to run.
type Inserted struct {
	Runner
	Took time.Duration // for verification and threading, or the nearest equivalent
	Size int           // bytes of code; 0: unknown
}

// Runner runs a program.
type Runner interface {
	// Run runs it n times, at least once.
	Run(n int) (Turn, error)

	// Close removes it.
	Close() error
}

// Turn is what one call of Run came to.
type Turn struct {
	R0           uint64  // of the last run
	Instructions uint64  // of one run; 0: not counted
	Each         float64 // nanoseconds of one run
}

// Result is what one contender did.
type Result struct {
	Instructions uint64        // of one run; 0: unknown
	Run          float64       // nanoseconds of one run, median
	Insert       time.Duration // verification and threading, median
	Size         int           // bytes of code; 0: unknown
	Err          error         // why there are no figures
}

// PerInstruction returns the nanoseconds of one instruction.
func (r *Result) PerInstruction() float64 {
	if r.Instructions == 0 {
		return 0
	}
	return r.Run / float64(r.Instructions)
}

// Plan says how to measure. The zero value of each field is good.
type Plan struct {
	Rounds int           // 0: one
	Turn   time.Duration // how long the runs of a contender take in a round, at least; 0: 5 ms
}

// Measure runs a program on the contenders and returns their results in the same order. A contender
// that does not count instructions gets the count of another.
func (p *Program) Measure(contenders []Contender, plan Plan) []Result {
	plan.Rounds, plan.Turn = max(plan.Rounds, 1), cmp.Or(plan.Turn, 5*time.Millisecond)
	turns := make([]contest, len(contenders))
	for i, c := range contenders {
		turns[i].Contender, turns[i].program = c, p
		if c.Bounded {
			turns[i].program = p.Bounded()
		}
	}
	for range plan.Rounds {
		for i := range turns {
			turns[i].round(plan.Turn)
		}
	}
	results := make([]Result, len(turns))
	for i := range turns {
		results[i] = turns[i].result()
		if r := &results[i]; r.Err == nil && r.Instructions == 0 {
			r.Instructions = turns[i].program.count(contenders)
		}
	}
	return results
}

// count returns the number of instructions of a run, 0 if no contender counts them.
func (p *Program) count(contenders []Contender) uint64 {
	for _, c := range contenders {
		if c.Once {
			continue
		}
		inserted, err := c.Insert(p)
		if err != nil {
			continue
		}
		t, err := inserted.Run(1)
		if err = errors.Join(err, inserted.Close()); err == nil && t.Instructions > 0 {
			return t.Instructions
		}
	}
	return 0
}

// contest is a contender with one program, and its figures.
type contest struct {
	Contender
	program      *Program
	inserted     *Inserted // nil: not now
	runs         int       // in one round; 0: not known yet
	times        []float64 // nanoseconds of one run, in each round
	inserts      []time.Duration
	instructions uint64
	size         int
	err          error
}

// round lets the contender run the program for a while.
func (c *contest) round(turn time.Duration) {
	if c.err != nil {
		return
	}
	if c.inserted == nil {
		if c.err = c.insert(turn / 4); c.err != nil {
			return
		}
	}
	c.err = c.run(turn)
	if !c.Once || c.err != nil {
		c.err = errors.Join(c.err, c.remove())
	}
}

// insert inserts the program again and again for a while, so that what it costs
// is not what a cold cache costs. The last one stays.
func (c *contest) insert(atLeast time.Duration) (err error) {
	var total time.Duration
	for n := 1; ; n++ {
		if c.inserted, err = c.Insert(c.program); err != nil {
			return err
		}
		total += c.inserted.Took
		if total >= atLeast || c.Once {
			c.size = c.inserted.Size
			c.inserts = append(c.inserts, total/time.Duration(n))
			return nil
		}
		if err := c.remove(); err != nil {
			return err
		}
	}
}

// remove removes the program if it is there.
func (c *contest) remove() error {
	if c.inserted == nil {
		return nil
	}
	err := c.inserted.Close()
	c.inserted = nil
	return err
}

// run adds one time to c's. The very first run determines the number of runs, and is not counted.
func (c *contest) run(turn time.Duration) error {
	if c.runs == 0 {
		first, err := c.inserted.Run(1)
		if err == nil && first.R0 != c.program.Want {
			err = fmt.Errorf("program %s: r0 is %#x, not %#x", c.program.Name, first.R0, c.program.Want)
		}
		if err != nil {
			return err
		}
		c.runs = 1 + int(float64(turn)/max(first.Each, 1))
		c.instructions = first.Instructions
	}
	t, err := c.inserted.Run(c.runs)
	if err == nil && t.R0 != c.program.Want {
		err = fmt.Errorf("program %s: r0 is %#x in the end, not %#x", c.program.Name, t.R0, c.program.Want)
	}
	c.times = append(c.times, t.Each)
	return err
}

// result removes the program and returns its result.
func (c *contest) result() Result {
	if err := errors.Join(c.err, c.remove()); err != nil {
		return Result{Err: err}
	}
	return Result{Instructions: c.instructions, Run: median(c.times), Insert: median(c.inserts), Size: c.size}
}

func median[T cmp.Ordered](times []T) T {
	slices.Sort(times)
	return times[len(times)/2]
}
