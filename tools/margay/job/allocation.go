package job

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/pflag"

	"margay/cluster/site"
	"margay/tools/margay/command"
)

// AllocationVariable is the environment variable with the number of the allocation that a command
// runs in. site.MachineVariable then has its machine.
const AllocationVariable = "MARGAY_ALLOCATION"

// noAllocation is the value of --allocation for a job outside of the allocation.
const noAllocation = "none"

// PlaceFlags adds the flags that choose nodes, and say for how long and when.
func PlaceFlags(fs *pflag.FlagSet, f *Flags) {
	fs.StringVarP(&f.Only, "nodelist", "w", "", "use these `nodes` only: 0,2, node1..node4 or node[1-4,10]")
	fs.StringVarP(&f.Without, "exclude", "x", "", "do not use these `nodes`")
	fs.StringVarP(&f.Time, "time", "t", "", "end the job, with status 124, when it has run for this `time`: 30s, 5m, HH:MM:SS")
	fs.StringVar(&f.Wait, "wait", "", "wait for free cores, without a limit or for this `time`, in order of arrival")
	fs.Lookup("wait").NoOptDefVal = forever
}

// AllocationFlag adds the flag that names an allocation.
func AllocationFlag(fs *pflag.FlagSet, f *Flags) {
	fs.StringVar(&f.Allocate, "allocation", "", "use cores of this allocation, the number of a `job`, or none (default: the one around this command)")
}

// StepFlags adds the flags of margay run that margay exec has as well.
func StepFlags(fs *pflag.FlagSet, f *Flags) {
	PlaceFlags(fs, f)
	fs.IntVarP(&f.CoresEach, "cpus-per-task", "c", 0, "cores of each process (default: 1)")
	addRootFlags(fs, f)
	fs.StringArrayVar(&f.Files, "files", nil, "let the processes see and change the folder `DIR[=DEST][:ro]` of this host (may be repeated)")
	fs.StringArrayVar(&f.With, "with", nil, "a file or folder to copy as well (may be repeated)")
	fs.BoolVar(&f.Network, "network", false, "give the processes the network of the allocation")
	labelFlag(fs, &f.Label)
	fs.BoolVar(&f.Collapse, "collapse", false, "print equal lines of processes once, with their numbers: a line waits up to a second for others")
	fs.StringVar(&f.Stdin, "stdin", "first", "which processes read standard input: first, all or none (in loops that read it)")
	fs.BoolVar(&f.Terminal, "pty", false, "give the process, a single one, a terminal: for shells, editors and other programs that need one")
	fs.StringVar(&f.Chdir, "chdir", "", "the working `directory` of the processes (default: this one)")
	fs.StringArrayVar(&f.Env, "env", nil, "set a variable of the environment, as `NAME=VALUE` (may be repeated)")
	fs.BoolVarP(&f.Verbose, "verbose", "v", false, "print the steps of margay")
	fs.BoolVarP(&f.Quiet, "quiet", "q", false, "print nothing but errors and the output of the processes")
}

// CheckStep refuses flags of margay exec that exclude each other, and opens the root.
func (f *Flags) CheckStep() error {
	if err := checkLabel(f.Label); err != nil {
		return err
	}
	switch {
	case f.Terminal && f.Ranks > 1:
		return fmt.Errorf("--pty: a terminal is for a single process, and there are %d: -w names one node", f.Ranks)
	case f.Terminal && (f.Label != "" || f.Collapse || f.Stdin != "first"):
		return errors.New("--pty excludes --label, --collapse and --stdin")
	case f.Collapse && f.Label != "":
		return errors.New("--collapse excludes --label")
	case f.Quiet && f.Verbose:
		return errors.New("-q and -v exclude each other")
	}
	return f.openRoot()
}

// AllocationAround returns the number of the allocation of the environment, if that is of the
// machine that is used; empty: there is none.
func AllocationAround(a *command.App) string {
	if os.Getenv(site.MachineVariable) != a.Machine {
		return ""
	}
	return os.Getenv(AllocationVariable)
}

// EnterAllocation makes the job a step of the allocation that --allocation names, or else of the
// one of the environment, if that is of the machine that is used.
func (f *Flags) EnterAllocation(a *command.App) (err error) {
	text, from := f.Allocate, "--allocation"
	if text == noAllocation {
		return nil
	}
	if text == "" {
		text, from = AllocationAround(a), AllocationVariable
	}
	if text == "" {
		return nil
	}
	if f.Step, err = command.ParseJob(text); err != nil {
		return fmt.Errorf("%s: %w", from, err)
	}
	return nil
}
