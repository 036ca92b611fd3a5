// Package nimble has the commands that check, run and translate single programs without a node.
package nimble

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"margay/kernel/abi/slot"
	"margay/nimble"
	"margay/nimble/driver"
	"margay/nimble/engine"
	"margay/nimble/engine/list"
	"margay/nimble/object"
	"margay/nimble/verify"
	"margay/tools/margay/command"
	"margay/tools/margay/show"
)

// commands make the commands of this group.
type commands struct{ *command.App }

// Commands returns the commands of this group.
func Commands(app *command.App) []*cobra.Command {
	a := commands{app}
	return []*cobra.Command{a.nimbleCommand()}
}

// Exit statuses of margay nimble beside the status of a failure of margay itself.
const (
	exitFault    = 1 // the program was stopped
	exitRejected = 2 // the program was not accepted
)

func (a commands) nimbleCommand() *cobra.Command {
	c := &cobra.Command{Use: "nimble", Short: "Check, run and translate single programs without a node"}
	c.AddCommand(a.nimbleRunCommand(), a.nimbleVerifyCommand(), a.nimbleAsmCommand(), a.nimbleDisCommand(), a.nimbleBenchCommand(),
		a.nimbleEnginesCommand())
	return c
}

// programFlags select the source of a program and its services.
type programFlags struct {
	elf, asm string // files
	choice   driver.Choice
	services string
	trusted  bool
}

func (f *programFlags) add(c *cobra.Command) {
	f.addSource(c)
	c.Flags().StringVar(&f.services, "services", "", "the services that it may call: test, linux, node or none (default: test, with a file node)")
	c.Flags().BoolVar(&f.trusted, "trusted", false, "treat it as trusted: services for the trusted, no checks of memory")
}

// noFile is command.NoArguments for commands with the flags of addSource: it names the flag for a
// file.
func noFile(c *cobra.Command, args []string) error {
	err := command.NoArguments(c, args)
	if err == nil {
		return nil
	}
	flag := "--asm"
	if filepath.Ext(args[0]) == ".o" {
		flag = "--elf"
	}
	return fmt.Errorf("%w; %s %s reads a file", err, flag, args[0])
}

// addSource adds the flags of a command that only reads.
func (f *programFlags) addSource(c *cobra.Command) {
	c.Flags().StringVar(&f.elf, "elf", "", "read an object of clang -target bpf from this file, not standard input")
	c.Flags().StringVar(&f.asm, "asm", "", "read the text of margay nimble dis from this file, not standard input")
	addChoice(c, &f.choice, "with --elf or --asm: ")
}

// addChoice adds the flags that choose among the programs of a file.
func addChoice(c *cobra.Command, choice *driver.Choice, when string) {
	c.Flags().StringVar(&choice.Section, "section", "", when+"the section of the program")
	c.Flags().StringVar(&choice.Function, "function", "", when+"the function that is the program")
}

// readFile reads a file that may turn out to be anything.
func readFile(name string) ([]byte, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return driver.ReadAll(file)
}

// file reports whether the program comes from a file.
func (f *programFlags) file() bool { return f.elf != "" || f.asm != "" }

// read reads the programs that there are.
func (f *programFlags) read(a commands) ([]*object.Spec, error) {
	switch {
	case f.elf != "" && f.asm != "":
		return nil, fmt.Errorf("--elf %s and --asm %s: only one of them", f.elf, f.asm)
	case f.choice != driver.Choice{} && !f.file():
		return nil, fmt.Errorf("%v: only a file has several programs, give --elf or --asm", f.choice)
	case !f.file():
		spec, err := driver.Hex(a.Stdin)
		return []*object.Spec{spec}, err
	}
	file, err := readFile(cmp.Or(f.elf, f.asm))
	if err != nil {
		return nil, err
	}
	if f.asm != "" {
		return driver.Text(file)
	}
	return driver.Object(file)
}

// one reads the only program.
func (f *programFlags) one(a commands) (*object.Spec, error) {
	specs, err := f.read(a)
	if err != nil {
		return nil, err
	}
	return f.choice.One(specs)
}

// all reads all programs that are chosen.
func (f *programFlags) all(a commands) ([]*object.Spec, error) {
	specs, err := f.read(a)
	if err != nil {
		return nil, err
	}
	return f.choice.All(specs)
}

// options returns how a program is inserted.
func (f *programFlags) options() (o nimble.Options, err error) {
	name := "test"
	if f.file() {
		name = "node"
	}
	o.Trusted = f.trusted
	o.Services, err = driver.Services(cmp.Or(f.services, name))
	return o, err
}

// limitFlags bound a run.
type limitFlags struct {
	engine  string
	fuel    uint64
	maxTime time.Duration
}

func (f *limitFlags) add(c *cobra.Command) {
	c.Flags().StringVar(&f.engine, "engine", "", "the engine to use (default: see margay nimble engines)")
	c.Flags().Uint64Var(&f.fuel, "fuel", nimble.DefaultFuel, "instructions that it may execute")
	c.Flags().DurationVar(&f.maxTime, "max-time", nimble.DefaultMaxTime, "how long it may take; 0: no limit")
}

// limit adds the limits and the engine to the options.
func (f *limitFlags) limit(o *nimble.Options) (err error) {
	switch {
	case f.fuel == 0:
		return errors.New("--fuel 0: a program needs at least one instruction")
	case f.maxTime < 0:
		return fmt.Errorf("--max-time %v: it is positive, or 0 for no limit", f.maxTime)
	case f.maxTime == 0:
		o.Limits.MaxTime = -1
	default:
		o.Limits.MaxTime = f.maxTime
	}
	o.Limits.Fuel = f.fuel
	o.Engine, err = list.Find(f.engine)
	return err
}

func (a commands) nimbleRunCommand() *cobra.Command {
	var p programFlags
	var l limitFlags
	var batch bool
	var context string
	c := &cobra.Command{
		Use:   "run [MEM]",
		Short: "Run a program once and print its r0",
		Long: `Run a program once and print its r0, in hexadecimal.

The program is read from standard input as hexadecimal, white space ignored, from an object (--elf) or from text (--asm);
--section or --function chooses one of several. MEM, in hexadecimal too, is what its writable memory holds at first; a
recorded context can be given as a file (--ctx). At entry r1 is the address of that memory and r2 its length, both 0
without MEM; r10 is the end of a stack of 512 bytes.

Of the services, test is for programs in hexadecimal: 5 returns its first argument, 1 xors each byte of memory (pointer,
length) with 42. linux is what a node offers under the numbers of Linux.

With --batch every line of standard input is MEMHEX CODEHEX, - standing for no memory, and one line answers it: r0,
reject insn=N: REASON, or fault pc=N addr=0xA kind=KIND fuel=LEFT. A line that is neither is answered with error REASON, and
a program that the engine linux does not take with reject linux: REASON.

What a program prints, by service 6 of linux, trace_printk, goes to standard error.

Exit status: 0 when the program, or every line of a batch, has run or was judged; 1 when a fault stopped the program and
2 when it was rejected, both with nothing on standard output and a line on standard error; 125 for any other error.`,
		Example: `  echo b7000000 2a000000 95000000 00000000 | margay nimble run
  margay nimble asm < sum.s | margay nimble run --fuel=100 "01 02 03 04"
  margay nimble run --elf accumulate.o --section message
  margay nimble dis --elf accumulate.o > accumulate.s; margay nimble run --asm accumulate.s`,
		Args: command.Arguments(0, 1),
		RunE: func(_ *cobra.Command, args []string) error {
			o, err := p.options()
			if err != nil {
				return err
			}
			if err := l.limit(&o); err != nil {
				return err
			}
			if batch {
				return a.nimbleBatch(&p, o, context, args)
			}
			mem, err := initialMemory(context, args)
			if err != nil {
				return err
			}
			o.Print = func(line string) { fmt.Fprintln(a.Stderr, line) }
			return a.nimbleRun(&p, o, mem)
		},
	}
	p.add(c)
	l.add(c)
	c.Flags().StringVar(&context, "ctx", "", "read the bytes of its memory from this file, instead of MEM")
	c.Flags().BoolVar(&batch, "batch", false, "run a program for each line of standard input")
	return c
}

// initialMemory returns the initial contents of a program's memory.
func initialMemory(file string, args []string) ([]byte, error) {
	switch {
	case file != "" && len(args) > 0:
		return nil, fmt.Errorf("--ctx %s: it takes the place of MEM", file)
	case file != "":
		return readFile(file)
	case len(args) == 0:
		return nil, nil
	}
	mem, err := driver.Memory(args[0])
	if err != nil {
		return nil, notHexadecimal(args[0])
	}
	return mem, nil
}

// notHexadecimal is the error of an argument that is not the contents of memory. It may be the name
// of a program.
func notHexadecimal(text string) error {
	if _, err := os.Stat(text); err == nil {
		return fmt.Errorf("nimble run: %q is not memory in hexadecimal: --elf %[1]s runs the program of an object, --asm of a text, and --ctx %[1]s reads memory from a file", text)
	}
	return fmt.Errorf("nimble run: %q is not memory in hexadecimal, such as \"01 02 03\"; a program comes from standard input, --elf or --asm", text)
}

// nimbleRun runs one program.
func (a commands) nimbleRun(p *programFlags, o nimble.Options, mem []byte) error {
	spec, err := p.one(a)
	if err != nil {
		return status(err)
	}
	r0, err := driver.Run(spec, mem, o)
	if err != nil {
		return status(err)
	}
	_, err = fmt.Fprintf(a.Stdout, "%x\n", r0)
	return err
}

func (a commands) nimbleBatch(p *programFlags, o nimble.Options, context string, args []string) error {
	if p.file() || p.choice != (driver.Choice{}) || context != "" || len(args) > 0 {
		return errors.New("--batch: programs and their memory are lines of standard input, not --elf, --asm, --ctx or MEM")
	}
	return driver.Batch(a.Stdin, a.Stdout, o)
}

// status gives an error its exit status.
func status(err error) error {
	if _, ok := errors.AsType[*driver.Rejection](err); ok {
		return command.Failed(exitRejected, err)
	}
	if fault, ok := errors.AsType[*engine.Fault](err); ok {
		return command.Failed(exitFault, errors.New(driver.OneLine(fault.Error())))
	}
	return err
}

func (a commands) nimbleVerifyCommand() *cobra.Command {
	var p programFlags
	var verbose bool
	promise := verify.Context{Readable: true, Writable: true}
	c := a.JSONFlag(&cobra.Command{
		Use:   "verify",
		Short: "Verify a program, and show the facts that were proved",
		Long: `Verify a program. It is read as by margay nimble run; of a file, every program is verified unless
--section or --function chooses.

A program is accepted when every opcode is known and every field of every instruction is in its bounds, unused ones zero;
when every jump stays in its function and lands on an instruction; when no function falls off its end; and when every map
and service exists and may be used. Memory is not a reason to refuse: an access that is not proved to stay inside its
region is checked when it happens. -v shows which ones are, and why; --json gives all that to programs. The context is
taken to be readable and writable, and at least as long as --context or the slot of an object says.

Exit status: 0 when all programs are accepted; 2 when one is not, with a line that names the instruction as insn=N.`,
		Example: `  echo b7000000 2a000000 95000000 00000000 | margay nimble verify
  margay nimble verify -v --elf accumulate.o --function accumulate`,
		Args: noFile,
		RunE: func(*cobra.Command, []string) error {
			o, err := p.options()
			if err != nil {
				return err
			}
			specs, err := p.all(a)
			if err != nil {
				return status(err)
			}
			o.Context = promise
			return a.nimbleVerify(specs, o, verbose)
		},
	})
	p.add(c)
	c.Flags().Uint64Var(&promise.Size, "context", 0, "how many bytes of context, at least, it is run with")
	c.Flags().BoolVarP(&verbose, "verbose", "v", false, "show the proved facts of each instruction that accesses memory or calls")
	return c
}

// contextOf returns the guaranteed context of a program: at least the guarantee of its slot, if it
// names one.
func contextOf(spec *object.Spec, c verify.Context) verify.Context {
	if row, err := slot.Find(slot.Name(spec.Slot())); err == nil {
		c.Size = max(c.Size, uint64(row.Context))
	}
	return c
}

// nimbleVerify verifies all programs, also those after one that is rejected.
func (a commands) nimbleVerify(specs []*object.Spec, o nimble.Options, verbose bool) error {
	var reports []driver.Report
	var rejected []error
	for _, spec := range specs {
		each := o
		each.Context = contextOf(spec, o.Context)
		program, err := driver.Verify(spec, each)
		if err != nil {
			rejected = append(rejected, err)
		}
		reports = append(reports, driver.NewReport(spec, program, err))
	}
	for _, spec := range specs {
		if made := slot.Name(spec.Slot()); spec.Section != "" && !slot.Declared(made) {
			fmt.Fprintf(a.Stderr, "margay: program %s is in section %s, which names no slot; see margay ext slots\n",
				driver.OneLine(spec.Name), driver.OneLine(spec.Section))
		}
	}
	if err := a.printReports(reports, verbose); err != nil {
		return err
	}
	if len(rejected) > 0 {
		return command.Failed(exitRejected, errors.Join(rejected...))
	}
	return nil
}

// printReports writes the results: as JSON, or for people the accepted programs
// only.
func (a commands) printReports(reports []driver.Report, verbose bool) error {
	if a.JSON {
		return show.Value(a.Stdout, reports)
	}
	for _, r := range reports {
		if !r.Accepted {
			continue
		}
		if _, err := fmt.Fprintln(a.Stdout, r.Summary()); err != nil {
			return err
		}
		if !verbose {
			continue
		}
		if err := r.Explain(a.Stdout); err != nil {
			return err
		}
	}
	return nil
}

// engineRow is a row of margay nimble engines.
type engineRow struct {
	Name    string `json:"engine"`
	Here    bool   `json:"here"`
	Asked   bool   `json:"asked"`            // used only if --engine names it
	Default bool   `json:"default"`          // the first that a program is offered
	Reason  string `json:"reason,omitempty"` // why it is not here
	About   string `json:"about"`
}

// here describes whether an engine can be used.
func (r *engineRow) here() string {
	switch {
	case !r.Here:
		return "no: " + r.Reason
	case r.Asked:
		return "yes, with --engine"
	case r.Default:
		return "yes, the default"
	}
	return "yes"
}

func (a commands) nimbleEnginesCommand() *cobra.Command {
	return a.JSONFlag(&cobra.Command{
		Use:     "engines",
		Example: "  margay nimble engines",
		Short:   "List the engines, and why some cannot be used here",
		Long: `List the engines, best first, which of them can be used here and why not the others. Without --engine, and on nodes, a
program goes to the first one that is here and takes it; margay ext list shows which, and why not a better one.`,
		Args: command.NoArguments,
		RunE: func(*cobra.Command, []string) error {
			var rows []engineRow
			best := true
			for _, entry := range list.Engines {
				r := engineRow{Name: entry.Name, Here: true, Asked: entry.Asked, About: entry.About}
				if _, err := entry.Make(); err != nil {
					r.Here, r.Reason = false, err.Error()
				} else if best && !entry.Asked {
					r.Default, best = true, false
				}
				rows = append(rows, r)
			}
			return a.printEngines(rows)
		},
	})
}

func (a commands) printEngines(rows []engineRow) error {
	if a.JSON {
		return show.Value(a.Stdout, rows)
	}
	t := show.NewTable(a.Stdout, "ENGINE", "HERE", "WHAT")
	for _, r := range rows {
		t.Row(r.Name, r.here(), r.About)
	}
	return t.Flush()
}
