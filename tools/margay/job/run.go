package job

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/user"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"margay/cluster/control"
	"margay/cluster/launch"
	"margay/cluster/serve"
	"margay/tools/margay/command"
	"margay/tools/margay/show"
)

// forwarded are the signals that margay run passes on to the ranks.
var forwarded = []os.Signal{unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT, unix.SIGUSR1, unix.SIGUSR2}

// keptOutput is how much output of a detached job is kept.
var keptOutput = fmt.Sprintf("%d MiB", serve.SpoolLimit>>20)

// Flags are the flags of margay run.
type Flags struct {
	Ranks     int
	PerNode   int
	PerCore   int
	With      []string
	Label     bool
	Detach    bool
	KeepGoing bool
	HugePages bool
	Force     bool
	Verbose   bool
	Stdin     string
	MemoryMiB int
	Pids      int
	InitWait  time.Duration
	Quiet     bool
	Nodes     int
	CoresEach int
	Only      string // lists of nodes
	Without   string
	Time      string
	Signal    string // SIGNAL@TIME
	Wait      string // how long to wait for cores; empty: not at all
	Output    string // patterns of file names
	Error     string
	Chdir     string
	Env       []string // NAME=VALUE
	Export    string
}

func (a commands) runCommand() *cobra.Command {
	var f Flags
	c := &cobra.Command{
		Use:   "run [flags] PROGRAM [ARGUMENT...]",
		Short: "Run a program on the machine, one process per application core",
		Long: `Run a program on the machine: one process, called a rank, on each of as many application cores as -n asks for.

With --ppn each node gets so many ranks; where that is more than it has cores, up to 8 ranks share one. --per-core has
them share, however many cores there are. Ranks that share a core take turns, unless an extension in the slot sched
knows better. Cores are never shared between jobs.

The program is copied to the nodes with the libraries it needs and the files that --with names, and their libraries.
On a node all of them have the names that they have here, and the working directory and the environment are those of
here too; nothing else of this host's files is there: no other programs, of /etc only the user's and the node's name, and
of an interpreter only what is named (--with /usr/lib/python3.11). What ranks write to files is in the node's memory and goes with the job, which
names some of those files at its end, but none in /tmp; standard output and standard error are what comes back, also what
processes write that ranks have started. Those that are left when all ranks have ended are ended half a second later.
Each rank finds its number in MARGAY_RANK and how many there are in MARGAY_SIZE.

The lines of several ranks stay whole, however long they are, and a last line without an end is given one. The output of
a single rank is written byte for byte.

-N spreads the ranks over so many nodes, as evenly as they can be. With -c each rank has several cores for itself: its threads run on
them, OMP_NUM_THREADS is their number unless it is set, and Go finds it by itself. Where Linux leaves threads where they began (boot
profile isolated), OMP_PROC_BIND=true, which is set as well, has OpenMP spread them; other programs must do that themselves.

-t ends a job that has run for so long: the ranks get SIGTERM, and SIGKILL 2 s later; the status is 124. The time that files take to be
copied does not count. The machine keeps the limit, also that of a detached job. With --signal USR1@30s ranks are warned.

A job for which there are too few free cores is refused with status 125. With --wait it waits for them behind those that came
before it: none overtakes it that may use the same nodes. Ctrl-C leaves the queue. When serve is started again, jobs that wait lose
their places, and say so.

-o and -e write the output to files that are created here before the ranks run. With %r in its name a file has the output of one rank,
byte for byte. Without -e, standard error goes where -o says, too. margay run fails with 125 when a file cannot be written.

Programs that are linked with MPI or PMI are refused: each rank would be a world of its own, rank 0 of 1. With --force
they run like that.

With --huge-pages Linux gives the program a huge page whenever it first touches one that lies wholly in a piece of its
memory: fewer faults and fewer misses of the processor's translations, for up to 2 MiB of each piece that is not
used. The program need not know; files, shared memory and stacks stay as they are. Without it only programs that ask
by themselves get some. margay ps JOB and -v show the faults and the processor time of each rank.

--memory is what all of a job may use on a node, files included: one rank may have it all. On nodes without control groups
(hosted) nothing adds up what the ranks use. There each rank gets an even part of it, as the limit of its own private
memory (RLIMIT_DATA), and so does each process that it starts (where a host lets no process be traced, all but those of
the first moment); a rank that wants more is told so by Linux (ENOMEM).

Standard input goes to rank 0. While margay run is in the background of a shell with job control it reads nothing from
the terminal, and does not stop for it. Signals, Ctrl-C among them, go to all ranks. A second Ctrl-C within 3 s ends the
job, whatever its ranks do, with exit status 130; a third one does not wait for that. Before there are ranks, while files
are copied, the first one ends the job. Ctrl-Z stops margay run; the ranks go on. What was ignored when margay was
started stays ignored (nohup).

In a loop of a shell that reads its lines from standard input, margay run would take the other lines: --stdin none, or </dev/null,
leaves them to the loop.

With --detach the output is kept in the machine's folder, in output/job-N, until the machine ends or margay logs --remove removes it.
Of each job ` + keptOutput + ` are kept; what comes later is left out, and margay logs says so.

When a rank fails, the others are ended, and the job has the exit status of the rank that failed first: its own, or 128+N when
signal N ended it. With --keep-going the others go on, and the status is that of the lowest rank that failed, whichever was first.
Status 125 means that Margay failed, or that it ended the job because its ranks could not go on: one ended while others waited for
it in a barrier, or did not join those that use messages. A job that margay kill --force ends has 137. One whose margay run is killed,
or is ended by a closed pipe as that to head, ends too, and margay ps --all has it with 125, margay ps JOB with the reason. Where this is the status
of a SIGINT, SIGTERM or SIGHUP that margay run was sent, it dies of that signal, so that Ctrl-C ends a loop of the shell, too.`,
		Example: `  margay run -n 8 ./app -x 1
  margay run -n 4 --with data.txt --label ./app data.txt
  margay run -n 8 --ppn 4 ./app               # 4 ranks on each of 2 nodes
  margay run -n 2 --per-core 2 ./app          # both ranks on one core
  margay run -n 2 -c 4 ./openmp               # 2 ranks with 4 cores each
  margay run -N 4 -x node2 ./app              # one rank on each of 4 nodes, but not on node2
  margay run -t 10m --signal USR1@30s ./app   # ended after 10 minutes, warned 30 seconds before
  margay run --wait=1h -n 8 -o out.%j.%r ./app
  margay run -n 8 --huge-pages -v ./app       # and say what each rank has used
  margay run --detach -n 8 ./app && margay ps`,
		Args: command.Arguments(1, -1),
		RunE: func(c *cobra.Command, args []string) error {
			if err := f.check(c, args); err != nil {
				return err
			}
			return Run(c.Context(), a.App, f, args)
		},
	}
	c.Flags().SetInterspersed(false)
	fs := c.Flags()
	fs.IntVarP(&f.Ranks, "ranks", "n", 1, "how many ranks")
	fs.IntVar(&f.PerNode, "ppn", 0, "ranks on each node but the last (default: one for each free core)")
	fs.IntVar(&f.PerCore, "per-core", 0, "ranks that share a core (default: 1, or as many as --ppn needs)")
	fs.StringArrayVar(&f.With, "with", nil, "a file or folder to take along (may be repeated)")
	fs.BoolVarP(&f.Label, "label", "l", false, "begin each line of output with the rank that wrote it")
	fs.BoolVarP(&f.Detach, "detach", "d", false, "print the job's number and leave it alone; margay logs shows its output, "+keptOutput+" at most")
	fs.BoolVar(&f.KeepGoing, "keep-going", false, "let the other ranks go on when one fails; the lowest rank that failed decides the status")
	fs.BoolVarP(&f.Verbose, "verbose", "v", false, "say what margay does")
	fs.StringVar(&f.Stdin, "stdin", "first", "which ranks read standard input: first, all or none (in loops that read it)")
	fs.IntVar(&f.MemoryMiB, "memory", 0, "memory for the job on each node, in MiB (default: the share of its cores)")
	fs.BoolVar(&f.HugePages, "huge-pages", false, "keep what the program allocates in huge pages (2 MiB) where it is large enough")
	fs.BoolVar(&f.Force, "force", false, "run a program that is linked with MPI or PMI all the same; its ranks do not find each other")
	fs.IntVar(&f.Pids, "pids", 0, "processes and threads of the job on each node (default 1024)")
	addFlags(fs, &f)
	fs.DurationVar(&f.InitWait, "init-timeout", 0, "how long ranks that use messages wait for one that does not join (default 30s)")
	return c
}

// addFlags adds the flags that have the names of Slurm's.
func addFlags(fs *pflag.FlagSet, f *Flags) {
	fs.IntVarP(&f.Nodes, "nodes", "N", 0, "spread the ranks over exactly this many nodes (default: as few as it takes); without -n, one rank each")
	fs.IntVarP(&f.CoresEach, "cpus-per-task", "c", 0, "cores of each rank, all for itself (default: 1)")
	fs.StringVarP(&f.Only, "nodelist", "w", "", "use these `nodes` only: 0,2, node1..node4 or node[1-4,10]")
	fs.StringVarP(&f.Without, "exclude", "x", "", "do not use these `nodes`")
	fs.StringVarP(&f.Time, "time", "t", "", "end the job, with status 124, when it has run for this `time`: 30s, 5m, HH:MM:SS")
	fs.StringVar(&f.Signal, "signal", "", "send the ranks this `signal` before the limit of --time: USR1@30s")
	fs.StringVar(&f.Wait, "wait", "", "wait until there are free cores, for ever or for this `time`, and in order of arrival")
	fs.Lookup("wait").NoOptDefVal = forever
	fs.StringVarP(&f.Output, "output", "o", "", "write the output to this `file`: %j is the job, %r the rank, %n the node")
	fs.StringVarP(&f.Error, "error", "e", "", "write standard error to this `file` (default: that of -o)")
	fs.StringVar(&f.Chdir, "chdir", "", "the working `directory` of the ranks (default: that of margay run)")
	fs.StringArrayVar(&f.Env, "env", nil, "set a variable of the ranks' environment, as `NAME=VALUE` (may be repeated)")
	fs.StringVar(&f.Export, "export", "", "`what` ranks get of the environment: ALL, NONE, or a list of NAME and NAME=VALUE (default ALL)")
	fs.BoolVarP(&f.Quiet, "quiet", "q", false, "say nothing of margay's own but why it fails")
}

// stdinModes are the values of --stdin.
var stdinModes = map[string]control.StdinMode{
	"first": control.StdinMode_STDIN_FIRST,
	"all":   control.StdinMode_STDIN_ALL,
	"none":  control.StdinMode_STDIN_NONE,
}

// Run runs a job on the machine of a, and returns its failure as an exit status.
func Run(ctx context.Context, a *command.App, f Flags, args []string) error {
	asked, err := f.spec()
	if err != nil {
		return err
	}
	socket, err := a.Socket()
	if err != nil {
		return err
	}
	env, err := f.environment()
	if err != nil {
		return err
	}
	if err := launch.CheckStrings(args, env); err != nil {
		return command.Failed(launch.ExitStatus(err), fmt.Errorf("run %s: %w", args[0], err))
	}
	files, err := launch.Collect(args[0], f.With)
	if err != nil {
		return command.Failed(launch.ExitStatus(err), err)
	}
	if files.Parallel != "" && !f.Force {
		return fmt.Errorf("run %s: it is linked with MPI or PMI (%s), which do not work here yet: each of the %d ranks would believe itself to be the only one and compute everything; --force runs it all the same",
			args[0], files.Parallel, asked.Ranks)
	}
	describe(asked, files)
	signals, stop := command.Catch(16, forwarded...)
	defer stop()
	o := launch.Options{
		Socket: socket, Spec: asked, Exec: &control.Exec{Argv: launch.Bytes(args), Env: launch.Bytes(env)}, Files: files, Label: f.Label,
		OutputFile: f.Output, ErrorFile: cmp.Or(f.Error, f.Output), Stdin: command.Foreground(a.Stdin), Stdout: a.Stdout, Stderr: a.Stderr, Signals: signals,
		Status: &launch.Status{W: a.Stderr, Verbose: f.Verbose, Quiet: f.Quiet, Terminal: show.IsTerminal(a.Stderr) && !f.Quiet},
	}
	if f.Detach {
		o.Started = func(job uint32) error { return tellJob(a.Stdout, job) }
	}
	code, err := launch.Run(ctx, o)
	if code == 0 && err == nil {
		return nil
	}
	if lack := files.Lack(code, args[1:]); lack != "" && code != launch.ExitMargay && err != nil {
		err = fmt.Errorf("%w; %s", err, lack)
	}
	return command.Failed(code, err)
}

// environment is that of the ranks.
func (f *Flags) environment() ([]string, error) {
	env, err := environment(os.Environ(), f.Export, f.Env)
	if err != nil {
		return nil, fmt.Errorf("run: %w", err)
	}
	if f.CoresEach > 0 {
		env = threads(env, f.CoresEach)
	}
	return env, nil
}

// tellJob prints the number of a job that is detached.
func tellJob(w io.Writer, job uint32) error {
	if _, err := fmt.Fprintln(w, job); err != nil {
		return fmt.Errorf("job %d is detached, but its number cannot be printed: %w", job, err)
	}
	return nil
}

// spec is what the flags ask for.
func (f *Flags) spec() (*control.JobSpec, error) {
	mode, ok := stdinModes[f.Stdin]
	if !ok {
		return nil, fmt.Errorf("--stdin %s: it is first, all or none", f.Stdin)
	}
	if f.Detach {
		mode = control.StdinMode_STDIN_NONE
	}
	s := &control.JobSpec{
		Ranks: uint32(f.Ranks), Stdin: mode, KeepGoing: f.KeepGoing, Detach: f.Detach, Memory: int64(f.MemoryMiB) << 20, Pids: uint32(f.Pids),
		InitTimeoutMs: uint32(f.InitWait.Milliseconds()), HugePages: f.HugePages, PerNode: uint32(f.PerNode), PerCore: uint32(f.PerCore),
		Nodes: uint32(f.Nodes), CoresEach: uint32(f.CoresEach),
	}
	for _, list := range []struct {
		flag, text string
		nodes      *[]uint32
	}{{"-w", f.Only, &s.Only}, {"-x", f.Without, &s.Without}} {
		var err error
		if list.text == "" {
			continue
		}
		if *list.nodes, err = parseNodes(list.text); err != nil {
			return nil, fmt.Errorf("run: %s %s: %w", list.flag, list.text, err)
		}
	}
	if err := f.times(s); err != nil {
		return nil, err
	}
	var err error
	s.Dir, err = f.dir()
	return s, err
}

// times puts into a job how long it may run and wait.
func (f *Flags) times(s *control.JobSpec) (err error) {
	if s.WaitMs, err = parseWait(f.Wait); err != nil {
		return fmt.Errorf("run: --wait=%s: %w", f.Wait, err)
	}
	if f.Signal != "" && f.Time == "" {
		return errors.New("run: --signal warns of a time limit, and there is none: --time sets it")
	}
	if f.Time == "" {
		return nil
	}
	limit, err := parseTime(f.Time)
	if err != nil {
		return fmt.Errorf("run: --time %s: %w", f.Time, err)
	}
	s.LimitMs = limit.Milliseconds()
	if f.Signal == "" {
		return nil
	}
	sig, before, err := parseWarning(f.Signal)
	if err != nil {
		return fmt.Errorf("run: --signal %s: %w", f.Signal, err)
	}
	if before >= limit {
		return fmt.Errorf("run: --signal %s: %v before a limit of %v is before the job begins", f.Signal, before, limit)
	}
	s.Warning, s.WarningMs = int32(sig), before.Milliseconds()
	return nil
}

func (f *Flags) dir() ([]byte, error) {
	dir, err := workingDir(f.Chdir)
	if err != nil {
		return nil, fmt.Errorf("run: %w", err)
	}
	return []byte(dir), nil
}

// check refuses flags that do not go together, and completes what one says for another. args are the program and its arguments.
func (f *Flags) check(c *cobra.Command, args []string) error {
	if err := command.Positive(c, "ranks", "ppn", "per-core", "memory", "pids", "init-timeout", "nodes", "cpus-per-task", "time"); err != nil {
		return err
	}
	if err := command.Given(c, "nodelist", "exclude", "signal", "output", "error", "chdir", "wait", "export"); err != nil {
		return err
	}
	if slices.Contains(f.With, "") {
		return errors.New("run: --with: an empty name; it takes a file or folder along")
	}
	for _, pattern := range []string{f.Output, f.Error} {
		if err := launch.CheckPattern(pattern); err != nil {
			return fmt.Errorf("run: the file %s: %w", pattern, err)
		}
	}
	_, isTime := parseTime(args[0])
	switch {
	case f.Wait == forever && c.Flags().Changed("wait") && isTime == nil:
		return fmt.Errorf("run: --wait takes a time only after =: --wait=%s", args[0])
	case f.CoresEach > 0 && f.PerCore > 0:
		return errors.New("run: ranks that have cores of their own (-c) share none: --per-core and -c exclude each other")
	case f.Detach && f.Output+f.Error != "":
		return errors.New("run: the output of a detached job is kept on the machine: margay logs JOB >FILE; -o and -e are for jobs that margay run waits for")
	case f.Quiet && f.Verbose:
		return errors.New("run: -q and -v exclude each other")
	}
	if f.Nodes > 0 && !c.Flags().Changed("ranks") {
		f.Ranks = f.Nodes * max(1, f.PerNode)
	}
	return nil
}

// describe adds to a job how the program would run here.
func describe(s *control.JobSpec, files *launch.Files) {
	umask := unix.Umask(0)
	unix.Umask(umask)
	s.Path, s.Umask, s.User, s.Uid = []byte(files.Program), uint32(umask), userName(), uint32(os.Getuid())
	s.RamDisk, s.Arch = files.Size(), files.Arch
}

// userName is the name of this user, fit for a line of /etc/passwd.
func userName() string {
	u, err := user.Current()
	if err != nil || u.Username == "" || strings.ContainsAny(u.Username, ":\n/") {
		return fmt.Sprintf("user%d", os.Getuid())
	}
	return u.Username
}
