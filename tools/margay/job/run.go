package job

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"margay/cluster/cache"
	"margay/cluster/control"
	"margay/cluster/launch"
	"margay/cluster/launch/image"
	"margay/cluster/roster"
	"margay/internal/nodeset"
	"margay/tools/margay/command"
	"margay/tools/margay/job/mpir"
	"margay/tools/margay/show"
)

// gcPercent lets the heap of margay run grow to 16 MiB before the first garbage collection, which
// would be a tenth of its processor time for a short job.
const gcPercent = 400

// keptOutput is the amount of output that is kept for a detached job.
var keptOutput = fmt.Sprintf("%d MiB", control.SpoolLimit>>20)

// Flags are the flags of margay run.
type Flags struct {
	Ranks     int
	PerNode   int
	PerCore   int
	With      []string
	Label     string // rank, host or both; empty: none
	Collapse  bool
	Detach    bool
	KeepGoing bool
	NoRetry   bool
	Spares    int
	HugePages bool
	Attach    bool
	Force     bool
	MPI       string // auto, pmi1 or none
	Network   bool
	Verbose   bool
	Stdin     string
	Terminal  bool
	Loadfile  string // empty: the programs are arguments
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
	Wait      string // for cores; empty: not at all
	Output    string // patterns of file names
	Error     string
	Chdir     string
	Env       []string // NAME=VALUE
	Export    string
	Root      string   // of the ranks: host, a folder, a tar file or an image
	RootLimit int      // of an image, unpacked, in MiB
	Files     []string // folders that the ranks see
	Out       []string
	Overwrite bool   // by Out
	Timing    string // how the phases are printed; empty: not at all
	TraceIO   string // file for a line for each request for a shared file; traceStderr, or empty: none
	Array     string // the tasks; empty: it is one job
	JSON      bool   // print the end of each task
	Beside    string // the job whose nodes are used; empty: none
	JobFile   string // that gets the number of the job
	Messages  string // file for what margay writes to standard error
	Allocate  string // the allocation whose cores are used, or none; empty: the one of the environment
	Step      uint32 // the same as a number; 0: none
	Joins     bool   // the network is the allocation's

	image *image.Image // that Root names; nil: none
}

func (a commands) runCommand() *cobra.Command {
	var f Flags
	c := &cobra.Command{
		Use:   "run [flags] PROGRAM [ARGUMENT...]",
		Short: "Run a program on the machine, one process per application core",
		Long: `Run a program on the machine: one process, called a rank, on each of -n application cores.

A job can have several programs: after a lone : and -n come the number of ranks of the next one, --env for it, and its arguments. The
ranks are numbered in this order, and are all of one job. Other flags stand before the first program and are for all. With -f the
programs are in a file: a line for each, -sz N PROGRAM [ARGUMENT...], with # before comments.

With --ppn each node gets that many ranks; if that is more than it has cores, up to 8 ranks share one. With --per-core that many ranks
share each core. Ranks that share a core take turns, or follow an extension in the slot sched. Jobs never share a core.

-N spreads the ranks evenly over that many nodes. With -c each rank has several cores for itself: its threads run on them, and
OMP_NUM_THREADS is their number unless it is set. Where Linux does not move threads (boot profiles isolated, ticking), OMP_PROC_BIND=true, which
is set as well, makes OpenMP spread them; other programs must bind their threads.

The program is copied to the nodes with its libraries, the files that --with names, and their libraries. All of them keep their names;
working directory and environment are the same as here. No other files of this host are there: no other programs, and no library of an
interpreter (--with /usr/lib/python3.11). Ranks cannot change or remove the program, its interpreter and its libraries, which jobs share on a
node; files of --with are the job's own. Files that ranks write are in the node's memory and vanish with the job, which names some of
them at its end, but none in /tmp. Standard output and standard error come back, also from processes that ranks have started;
those end half a second after the last rank. Each rank finds its number in MARGAY_RANK and the number of ranks in MARGAY_SIZE.

With --files ranks see and change a folder of this host while they run, under the same name or as DEST; with :ro they only read it. What
they do there, this command does for them, so it must run as long as the job. Writes return before they are carried out: their errors
come with a later write, fsync or close, and status 125 means that a file lacks data. --trace-io prints a line for each request: time,
node, what was done, file, offset and length, result, and how long it took.

With --out the files at a path come back when the ranks have ended, also when they failed or were killed: a file, or all that is new or
has changed in a folder. They get the same names here, or the name or folder DEST; %n in it is the node, %j the job. A file whose name
is taken, here or by another node, gets the name of its node as well, unless --out-overwrite lets it replace one that was here before
the job. Status 125 means that a file was lost, such as on a full disk.

--root host gives ranks the programs, libraries and configuration of the host: /usr, /bin, /sbin, /lib* and /etc, read-only. Nothing of
these is copied; nodes with a Linux of their own read them from here as with --files. --root with a folder or a tar file makes its contents the root of the ranks, in memory; the
program is then one of that root, or one of this host whose libraries are there.

--root also takes an image of a container: oci:PATH[:TAG], docker-archive:FILE[:TAG], or the path alone. Nothing is pulled from a registry.
Without a program on the command line the image's own runs (Entrypoint, Cmd), in its working directory unless --chdir names another.
The image's variables are added to the environment; its PATH replaces the one of here. Layers are kept, unpacked, in the cache
(~/.cache/margay/layers, 8 GiB at most). --root-limit bounds the size of an image, so that one made to fill the disk does not.

Lines of several ranks stay whole, whatever their length, and an incomplete last line is completed. The output of a single rank is
copied byte for byte. -o and -e write the output to files, which are created here before the ranks run. If the name contains %r, each
rank has a file, copied byte for byte. Without -e, standard error goes to the file of -o. margay run fails with 125 when a file cannot
be written.

In an allocation (margay alloc) the job gets cores of that, and ends with it; --allocation none takes others.

--beside runs one rank on each node of a running job, such as a tool that looks at it. It needs a free core on each, because jobs do not
share cores. --job-file writes the number of the job to a file, or a pipe, when its ranks run. With --messages all that margay itself
writes to standard error goes to a file.

-t ends a job at its time limit: the ranks get SIGTERM, and SIGKILL 2 s later; the status is 124. Copying files does not count. serve
keeps the limit, also for a detached job. --signal USR1@30s sends the ranks a signal before.

A job that needs more free cores than there are is refused with status 125. With --wait it waits for them, in order of arrival: no
later job that may use the same nodes gets them first. Ctrl-C leaves the queue. When serve restarts, waiting jobs queue again, in a new
order.

With --timing the time of each phase is printed to standard error when the job has ended, or when a detached job has started: with its
part on the slowest node, the sum, and the time since margay began (wall). collect finds the files and computes their digests, connect
reaches serve, queue waits for cores, allocate chooses them, record writes the job to serve's store, prepare makes the inits of the job on
its nodes, load brings the files that they lack, start starts the ranks, run lasts until all output is here, end removes the job from
its nodes, and messages is the time between margay and serve besides.

Programs of MPICH run unchanged: their ranks find each other by PMI 1, on several nodes over a network of the job's own (--network), which
needs a trusted wire between the nodes (margay machine up --fabric). A program is taken for one by its libraries or functions; --mpi=pmi1
says so of others, such as scripts, and --mpi=none that each rank is alone. Programs of Open MPI, PMIx and PMI 2 are refused, because each
rank would be rank 0 of 1; --force runs them.

With --network the job has an interface eth0 on each of its nodes, addresses of its own and the names of its nodes in /etc/hosts. No other
job, and nothing else, is in that network.

With --huge-pages Linux allocates a huge page (2 MiB) at the first access to one that lies in a piece of the program's memory: fewer
page faults and TLB misses, for up to 2 MiB of unused memory in each piece. The program needs no change; files, shared memory and stacks
are not affected. Without it, only programs that ask for huge pages get them. margay ps JOB and -v show the page faults and the
processor time of each rank.

--memory limits the job on each node, files included: one rank may use all of it. Nodes without control groups (hosted) cannot add up
the use of several ranks. There each rank gets an equal part as the limit of its private memory (RLIMIT_DATA), and so does each process
that it starts (where a host forbids tracing, not the first ones); beyond the limit Linux returns ENOMEM.

Standard input goes to rank 0. margay run reads no further ahead than the ranks have read: 4 KiB at first, of a terminal one line. Of a
file, what no rank has read is left to the next program that reads it. In the background of a shell with job control margay run does not read the terminal, and does not stop
for it. Signals, Ctrl-C among them, go to all ranks, but for CHLD, PIPE, PROF, URG and 32 to 34, which margay needs itself. A second
Ctrl-C within 3 s ends the job with exit status 130, whatever its ranks do; a third one does not wait for the end. While files are
copied, the first one ends the job. Ctrl-Z (TSTP) stops all ranks, and then margay run; fg and bg let them go on. A stopped job keeps its
cores, and its time limit goes on. Signals that were ignored at the start stay ignored (nohup).

--label begins each line with its rank, --label=host with its node, --label=both with both. With --collapse equal lines of ranks are
printed once, after the ranks that wrote them: [0-62,64] done. A line waits until all ranks have written it, for a second at most, or
until 8 MiB wait. The lines of each rank keep their order.

With --pty the rank, a single one, has a terminal on its node instead of pipes, as large as the terminal here: shells, editors and the
like work. Keys go to the rank, Ctrl-C and Ctrl-Z among them; what it writes comes to standard output. At the begin of a line, ~. ends
the job, and ~Ctrl-Z stops it and margay run. The file that describes the terminal (terminfo) is copied as well. However margay run
ends, the terminal here is as it was. If standard input is not a terminal, its end is Ctrl-D.

In a shell loop that reads its lines from standard input, margay run would read them: --stdin none, or </dev/null, leaves them to the
loop.

With --detach the output is kept in the machine's folder, in output/job-N, until the machine ends or margay logs --remove removes it.
` + keptOutput + ` are kept for each job; margay logs reports that there was more.

--array runs the program as many jobs, the tasks of an array, as they find free cores: of a list of numbers and ranges (1,3,8-10 or
0-20:5), after % how many at a time at most. Each task has -n ranks, and finds its number in MARGAY_ARRAY_TASK_ID; MARGAY_ARRAY_JOB_ID is
the first job of the array, and MARGAY_ARRAY_TASK_COUNT, _MIN, _MAX and _STEP describe it. Tasks have no standard input, and no terminal.
-o and -e may have %a for the task and %A for the array; tasks whose files have the same name share the file. Labels begin with the task.
When a task fails, no further one starts, and those that run go on; with --keep-going all of them run. At the end the failed tasks are
named. The status is the highest of all tasks. --json prints a line of JSON on standard output for each task that has ended; the tasks
themselves write to -o then. The first Ctrl-C goes to all tasks that run, and no further one starts. While margay run is stopped
(Ctrl-Z), so are the tasks.

When a rank fails, the others are ended, and the job has the exit status of the first rank that failed: its own, or 128+N when signal N
ended it. With --keep-going the others continue, and the status comes from the lowest rank that failed, not the first. Status 125
means that Margay failed, or that it ended the job because its ranks could not continue: one ended while others waited for it in a
barrier, or did not join ranks that use messages. A job that margay kill --force ends has 137. When margay run is killed, or ends by a
closed pipe as in a pipe to head, the job ends, too; margay ps --all shows 125, margay ps JOB the reason. If the status is the status
of a SIGINT, SIGTERM or SIGHUP that was sent to margay run, it dies of that signal, so that Ctrl-C also ends a loop of the shell.`,
		Example: `  margay run -n 8 ./app -x 1
  margay run -n 4 --with data.txt --label ./app data.txt
  margay run -n 8 --ppn 4 ./app               # 4 ranks on each of 2 nodes
  margay run -n 2 --per-core 2 ./app          # both ranks on one core
  margay run -n 2 -c 4 ./openmp               # 2 ranks with 4 cores each
  margay run -N 4 -x node2 ./app              # one rank on each of 4 nodes, but not on node2
  margay run -t 10m --signal USR1@30s ./app   # ended after 10 minutes, warned 30 seconds before
  margay run --wait=1h -n 8 -o out.%j.%r ./app
  margay run -n 8 --timing ./app              # and print how long each phase took
  margay run -n 1 ./master : -n 7 ./worker    # two programs, 8 ranks
  margay run --pty --with "$(command -v ls)" bash -i   # a shell on a node
  margay run -n 8 --huge-pages -v ./app       # and print the resources of each rank
  margay run -n 8 --out results ./app         # and bring back what they wrote in results
  margay run --root host ./script.py          # with the programs of the host
  margay run --root oci:debian:12 -n 8 perl -v   # with the programs of an image
  margay run --array 0-9999%200 -o out-%a ./app   # 10,000 jobs, 200 at a time, with MARGAY_ARRAY_TASK_ID
  margay run --detach -n 8 ./app && margay ps`,
		Args: func(c *cobra.Command, args []string) error {
			if f.Loadfile != "" || f.Root != "" && f.Root != rootHost && len(args) == 0 { // an image can name its program
				return nil
			}
			return command.Arguments(1, -1)(c, args)
		},
		RunE: func(c *cobra.Command, args []string) error {
			if err := f.check(c, args); err != nil {
				return err
			}
			if err := f.openRoot(); err != nil {
				return err
			}
			if err := f.EnterAllocation(a.App); err != nil {
				return err
			}
			if err := a.besideJob(c.Context(), &f); err != nil {
				return err
			}
			parts, err := f.parts(args)
			if err != nil {
				return err
			}
			return run(c.Context(), a.App, f, parts)
		},
	}
	c.Flags().SetInterspersed(false)
	fs := c.Flags()
	fs.IntVarP(&f.Ranks, "ranks", "n", 1, "how many ranks")
	fs.StringVarP(&f.Loadfile, "file", "f", "", "read the programs of the job from this loadfile: lines of -sz N PROGRAM [ARGUMENT...]")
	fs.IntVar(&f.PerNode, "ppn", 0, "ranks on each node but the last (default: one for each free core)")
	fs.IntVar(&f.PerCore, "per-core", 0, "ranks that share a core (default: 1, or as many as --ppn needs)")
	fs.StringArrayVar(&f.With, "with", nil, "a file or folder to copy as well (may be repeated)")
	labelFlag(fs, &f.Label)
	fs.BoolVar(&f.Collapse, "collapse", false, "print equal lines of ranks once, with the ranks: a line waits up to a second for others")
	fs.BoolVarP(&f.Detach, "detach", "d", false, "print the job's number and return; margay logs shows its output, "+keptOutput+" at most")
	fs.BoolVar(&f.KeepGoing, "keep-going", false, "let the other ranks continue when one fails; the lowest rank that failed decides the status")
	fs.BoolVar(&f.NoRetry, "no-retry", false, "fail when a node is lost before the ranks run, instead of launching on other nodes")
	fs.IntVar(&f.Spares, "spares", 0, "hold so many more nodes until the ranks run, to take the place of nodes that are lost before")
	fs.BoolVarP(&f.Verbose, "verbose", "v", false, "print the steps of margay")
	fs.StringVar(&f.Stdin, "stdin", "first", "which ranks read standard input: first, all or none (in loops that read it)")
	fs.BoolVar(&f.Terminal, "pty", false, "give the rank, a single one, a terminal: for shells, editors and other programs that need one")
	fs.IntVar(&f.MemoryMiB, "memory", 0, "memory for the job on each node, in MiB (default: the share of its cores)")
	fs.BoolVar(&f.HugePages, "huge-pages", false, "keep what the program allocates in huge pages (2 MiB) where it is large enough")
	fs.StringVar(&f.MPI, "mpi", "auto", "`how` ranks of MPI find each other: pmi1, none, or auto, by the libraries of the program")
	fs.BoolVar(&f.Network, "network", false, "give the job a network of its own between its nodes (MPI on several nodes has one)")
	fs.BoolVar(&f.Attach, "attach", false, "hold the ranks before their first instruction, print their processes, and let them go on after Enter at a terminal, or margay kill -s CONT")
	fs.BoolVar(&f.Force, "force", false, "run a program that is linked with Open MPI, PMIx or PMI 2; its ranks do not find each other")
	fs.StringVar(&f.Timing, "timing", "", "print, at the end, how long each phase of the job took: as a `table`, or with =json for programs")
	fs.Lookup("timing").NoOptDefVal = timingTable
	fs.IntVar(&f.Pids, "pids", 0, "processes and threads of the job on each node (default 1024)")
	addRootFlags(fs, &f)
	fs.StringArrayVar(&f.Files, "files", nil, "let the ranks see and change the folder `DIR[=DEST][:ro]` of this host (may be repeated)")
	fs.StringVar(&f.TraceIO, "trace-io", "", "print a line for each request for a file of --files: to standard error, or with =FILE to a `file`")
	fs.Lookup("trace-io").NoOptDefVal = traceStderr
	fs.StringArrayVar(&f.Out, "out", nil, "bring back what the ranks have written at `PATH[=DEST]`, a file or folder (may be repeated)")
	fs.BoolVar(&f.Overwrite, "out-overwrite", false, "let --out replace files that are here already")
	addFlags(fs, &f)
	addArrayFlags(fs, &f)
	addReportFlags(fs, &f)
	AllocationFlag(fs, &f)
	fs.DurationVar(&f.InitWait, "init-timeout", 0, "how long ranks that use messages wait for one that does not join (default 30s)")
	return c
}

// addFlags adds the flags that have the names of Slurm's.
func addFlags(fs *pflag.FlagSet, f *Flags) {
	fs.IntVarP(&f.Nodes, "nodes", "N", 0, "spread the ranks over exactly this many nodes (default: as few as it takes); without -n, one rank each")
	fs.IntVarP(&f.CoresEach, "cpus-per-task", "c", 0, "cores of each rank, all for itself (default: 1)")
	PlaceFlags(fs, f)
	fs.StringVar(&f.Signal, "signal", "", "send the ranks this `signal` before the limit of --time: USR1@30s")
	fs.StringVarP(&f.Output, "output", "o", "", "write the output to this `file`: %j is the job, %r the rank, %n the node, %a the task of --array")
	fs.StringVarP(&f.Error, "error", "e", "", "write standard error to this `file` (default: the file of -o)")
	fs.StringVar(&f.Chdir, "chdir", "", "the working `directory` of the ranks (default: this one)")
	fs.StringArrayVar(&f.Env, "env", nil, "set a variable of the ranks' environment, as `NAME=VALUE` (may be repeated)")
	fs.StringVar(&f.Export, "export", "", "the `variables` that ranks get: ALL, NONE, or a list of NAME and NAME=VALUE (default ALL)")
	fs.BoolVarP(&f.Quiet, "quiet", "q", false, "print nothing but errors and the output of ranks")
}

// stdinModes are the values of --stdin.
var stdinModes = map[string]control.StdinMode{
	"first": control.StdinMode_STDIN_FIRST,
	"all":   control.StdinMode_STDIN_ALL,
	"none":  control.StdinMode_STDIN_NONE,
}

// Run runs a job of one program on the machine of a, and returns its failure as an exit status.
func Run(ctx context.Context, a *command.App, f Flags, args []string) error {
	return run(ctx, a, f, []part{{ranks: f.Ranks, argv: args}})
}

// run runs a job of several programs.
func run(ctx context.Context, a *command.App, f Flags, parts []part) error {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	standardError := a.Stderr // of the ranks
	if err := f.divert(a); err != nil {
		return err
	}
	asked, err := f.Spec()
	if err != nil {
		return err
	}
	asked.Hold = f.holds()
	socket, err := a.Socket()
	if err != nil {
		return err
	}
	env, err := f.environment()
	if err != nil {
		return err
	}
	for _, p := range parts {
		if err := launch.CheckStrings(p.argv, slices.Concat(env, p.env)); err != nil {
			return command.Failed(launch.ExitStatus(err), fmt.Errorf("run %s: %w", p.argv[0], err))
		}
	}
	if f.Terminal {
		f.With = append(f.With, terminfo(env)...)
	}
	status := &launch.Status{W: a.Stderr, Verbose: f.Verbose, Quiet: f.Quiet, Terminal: show.IsTerminal(a.Stderr) && !f.Quiet}
	files, release, err := f.collect(ctx, status, programsOf(parts))
	if err != nil {
		return command.Failed(launch.ExitStatus(err), err)
	}
	defer release()
	if dir, err := cache.Dir(); err == nil { // without it, each job computes them
		files.Digests = filepath.Join(dir, "digests")
	}
	if d, err := a.Dir(); err == nil { // the machine is this user's, on this host
		files.Lent = d.Lent()
	}
	ofHost, err := f.lendHost(ctx, a, asked, files)
	if err != nil {
		return fmt.Errorf("run: --root host: %w", err)
	}
	if asked.Mpi, err = f.interfaceOf(files); err != nil {
		return fmt.Errorf("run %s: %w", parts[0].argv[0], err)
	}
	exec, err := execOf(parts, files, env)
	if err != nil {
		return err
	}
	if err := files.Describe(asked); err != nil {
		return err
	}
	asked.Dir = []byte(files.Dir(string(asked.Dir)))
	out, err := targets(f.Out, string(asked.Dir))
	if err != nil {
		return fmt.Errorf("run: %w", err)
	}
	for _, t := range out {
		asked.Out = append(asked.Out, []byte(t.Path))
	}
	shared, err := f.shared(asked, ofHost)
	if err != nil {
		return fmt.Errorf("run: --files %w", err)
	}
	signals, others, stop := catchForwarded()
	defer stop()
	o := launch.Options{
		Socket: socket, Spec: asked, Exec: exec, Files: files, Label: labels[f.Label], Collapse: f.Collapse, NoRetry: f.NoRetry,
		Shared: shared, Out: out, Overwrite: f.Overwrite, OutputFile: f.Output, ErrorFile: cmp.Or(f.Error, f.Output),
		Stdin: command.Foreground(a.Stdin), Lines: !f.Terminal && command.IsTerminal(a.Stdin), Stdout: a.Stdout, Stderr: standardError,
		Signals: signals.C, Begins: others, Suspend: command.Suspend,
		Status: status,
	}
	if f.Terminal {
		if err := takeTerminal(a, &o); err != nil {
			return err
		}
	}
	if f.Detach || f.JobFile != "" {
		o.Started = func(job uint32) error {
			others()
			return f.report(a, job)
		}
	}
	if asked.Hold {
		o.Held = func(ctx context.Context, job uint32) (bool, error) {
			others()
			return held(ctx, a, job, programsByRank(parts, files), f.Attach)
		}
	}
	if f.Timing != "" {
		o.Timing = launch.NewTiming(a.Began)
	}
	if f.Array != "" {
		others()
		return f.runArray(ctx, a, o)
	}
	endTrace, err := f.traceIO(a, &o)
	if err != nil {
		return fmt.Errorf("run: --trace-io: %w", err)
	}
	code, err := launch.Run(ctx, o)
	endTrace()
	if o.Timing != nil {
		f.printTimes(a.Stderr, o.Timing)
	}
	if code == 0 && err == nil {
		return nil
	}
	if hint := files.Hint(code, argumentsOf(parts, asked.Shared)); hint != "" && code != launch.ExitMargay && err != nil {
		err = fmt.Errorf("%w; %s", err, hint)
	}
	return command.Failed(code, err)
}

// argumentsOf returns the arguments of all programs, but for names of files in shared folders.
func argumentsOf(parts []part, shared []*control.SharedFolder) (args []string) {
	for _, p := range parts {
		for _, arg := range p.argv[1:] {
			path, err := filepath.Abs(arg)
			if err != nil || !slices.ContainsFunc(shared, func(s *control.SharedFolder) bool { return within(path, string(s.Path)) }) {
				args = append(args, arg)
			}
		}
	}
	return args
}

// parts returns the programs of the job, and sets the number of its ranks to their sum.
func (f *Flags) parts(args []string) (parts []part, err error) {
	switch {
	case f.Loadfile == "" && len(args) == 0:
		parts, err = f.ownProgram()
	case f.Loadfile == "":
		parts, err = splitParts(f.Ranks, args)
	case len(args) > 0:
		return nil, fmt.Errorf("run: -f has the programs: %s is one more", args[0])
	default:
		parts, err = readLoadfile(f.Loadfile)
	}
	if err != nil {
		return nil, err
	}
	f.Ranks = 0
	for _, p := range parts {
		f.Ranks += p.ranks
	}
	if f.Terminal && f.Ranks > 1 {
		return nil, fmt.Errorf("run: --pty: a terminal is for a single rank, and there are %d", f.Ranks)
	}
	return parts, nil
}

// The values of --mpi.
const (
	mpiAuto = "auto"
	mpiPMI1 = "pmi1"
	mpiNone = "none"
)

// interfaceOf returns how the ranks of a program find each other.
func (f *Flags) interfaceOf(files *launch.Files) (control.MPI, error) {
	switch {
	case f.MPI == mpiPMI1, f.MPI == mpiAuto && files.PMI1:
		return control.MPI_MPI_PMI1, nil
	case f.MPI == mpiAuto && files.Parallel != "" && !f.Force:
		return 0, fmt.Errorf("it is linked with an MPI or PMI (%s) that does not work here yet, MPICH does: each of the %d ranks would take itself for the only one and compute everything; "+
			"Open MPI's own mpirun runs it in an allocation (margay alloc); --force runs it",
			files.Parallel, f.Ranks)
	}
	return control.MPI_MPI_NONE, nil
}

// environment returns the environment of the ranks.
func (f *Flags) environment() ([]string, error) {
	env, err := environment(os.Environ(), f.Export, f.Env)
	if err != nil {
		return nil, fmt.Errorf("run: %w", err)
	}
	if f.image != nil {
		env = imageEnvironment(env, f.image.Config.Env, append(strings.Split(f.Export, ","), f.Env...))
	}
	if f.CoresEach > 0 && !f.Joins { // with Joins the cores are for what the program starts
		env = threads(env, f.CoresEach)
	}
	return env, nil
}

// printJob prints the number of a detached job.
func printJob(w io.Writer, job uint32) error {
	if _, err := fmt.Fprintln(w, job); err != nil {
		return fmt.Errorf("job %d is detached, but its number cannot be printed: %w", job, err)
	}
	return nil
}

// Spec returns the job that the flags describe.
func (f *Flags) Spec() (*control.JobSpec, error) {
	mode, ok := stdinModes[f.Stdin]
	if !ok {
		return nil, fmt.Errorf("--stdin %s: it is first, all or none", f.Stdin)
	}
	if f.Detach {
		mode = control.StdinMode_STDIN_NONE
	}
	switch {
	case f.Spares < 0 || f.Spares > roster.Most:
		return nil, fmt.Errorf("run: --spares %d: it is a number of nodes, 0 to %d", f.Spares, roster.Most)
	case f.Spares > 0 && f.NoRetry:
		return nil, errors.New("run: --spares is for another try, and --no-retry allows none")
	}
	s := &control.JobSpec{
		Spares: uint32(f.Spares), Ranks: uint32(f.Ranks), Stdin: mode, KeepGoing: f.KeepGoing, Detach: f.Detach, Memory: int64(f.MemoryMiB) << 20, Pids: uint32(f.Pids),
		InitTimeoutMs: uint32(f.InitWait.Milliseconds()), HugePages: f.HugePages, PerNode: uint32(f.PerNode), PerCore: uint32(f.PerCore),
		Nodes: uint32(f.Nodes), CoresEach: uint32(f.CoresEach), Network: f.Network, HostRoot: f.Root == rootHost,
		Step: f.Step, Joins: f.Joins,
	}
	for _, list := range []struct {
		flag, text string
		nodes      *[]uint32
	}{{"-w", f.Only, &s.Only}, {"-x", f.Without, &s.Without}} {
		var err error
		if list.text == "" {
			continue
		}
		if *list.nodes, err = nodeset.Parse(list.text); err != nil {
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

// holds reports whether the ranks are held before their first instruction: for Enter, or for a
// debugger of margay run, which must wait for them.
func (f *Flags) holds() bool {
	return f.Attach || mpir.Debugged() && !f.Detach && !f.Terminal && f.Array == ""
}

// times sets how long a job may run and wait.
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

// check refuses flags that exclude each other, and derives the number of ranks from -N. args are
// the program and its arguments.
func (f *Flags) check(c *cobra.Command, args []string) error {
	if err := command.Positive(c, "ranks", "ppn", "per-core", "memory", "pids", "init-timeout", "nodes", "cpus-per-task", "time", "root-limit"); err != nil {
		return err
	}
	if err := command.Given(c, "nodelist", "exclude", "signal", "output", "error", "chdir", "wait", "export", "timing", "root", "file", "array", "allocation"); err != nil {
		return err
	}
	if slices.Contains(f.With, "") {
		return errors.New("run: --with: an empty name; it copies a file or folder")
	}
	if err := f.checkArray(c); err != nil {
		return err
	}
	if err := f.checkReport(c); err != nil {
		return err
	}
	for _, pattern := range []string{f.Output, f.Error} {
		if err := launch.CheckPattern(pattern, f.Array != ""); err != nil {
			return fmt.Errorf("run: the file %s: %w", pattern, err)
		}
	}
	if err := checkLabel(f.Label); err != nil {
		return fmt.Errorf("run: %w", err)
	}
	if len(args) > 0 {
		if err := f.valueApart(args[0]); err != nil {
			return err
		}
	}
	if f.Nodes > 0 && !c.Flags().Changed("ranks") {
		f.Ranks = f.Nodes * max(1, f.PerNode)
	}
	switch {
	case f.CoresEach > 0 && f.PerCore > 0:
		return errors.New("run: ranks that have cores of their own (-c) share none: --per-core and -c exclude each other")
	case f.Loadfile != "" && (c.Flags().Changed("ranks") || f.Nodes > 0):
		return errors.New("run: -f has the numbers of ranks: -n and -N are not for it")
	case f.Terminal && (f.Detach || f.Label != "" || f.Collapse || f.Error != "" || f.Stdin != "first"):
		return errors.New("run: --pty excludes --detach, --label, -e and --stdin: the terminal is the rank's input, output and standard error")
	case f.Collapse && (f.Detach || f.Label != "" || f.Output+f.Error != ""):
		return errors.New("run: --collapse excludes --label, --detach, -o and -e: each line has its ranks, and comes when they have all written it")
	case f.Attach && (f.Detach || f.Terminal):
		return errors.New("run: --attach waits for Enter or margay kill -s CONT: it excludes --detach and --pty")
	case f.Detach && f.Output+f.Error != "":
		return errors.New("run: the output of a detached job is kept on the machine: margay logs JOB >FILE; -o and -e are for jobs that margay run waits for")
	case f.Detach && len(f.Out) > 0:
		return errors.New("run: --out brings files back to a margay run that waits for the end of its job: --out and -d exclude each other")
	case f.Detach && len(f.Files) > 0:
		return errors.New("run: --files needs a margay run that waits for the end of its job: --files and -d exclude each other")
	case f.TraceIO != "" && len(f.Files) == 0 && f.Root != rootHost:
		return errors.New("run: --trace-io shows what ranks do in shared folders, and there is no --files")
	case f.Overwrite && len(f.Out) == 0:
		return errors.New("run: --out-overwrite says how --out brings files back, and there is no --out")
	case f.Timing != "" && f.Timing != timingTable && f.Timing != timingJSON:
		return fmt.Errorf("run: --timing=%s: it is table or json", f.Timing)
	case !slices.Contains([]string{mpiAuto, mpiPMI1, mpiNone}, f.MPI):
		return fmt.Errorf("run: --mpi=%s: it is %s, %s or %s", f.MPI, mpiPMI1, mpiNone, mpiAuto)
	case f.Quiet && f.Verbose:
		return errors.New("run: -q and -v exclude each other")
	}
	return nil
}

// valueApart refuses a program that does not exist and is a value of a flag that takes one only
// after =.
func (f *Flags) valueApart(program string) error {
	_, isTime := parseTime(program)
	for _, flag := range []struct {
		name  string
		alone bool // given without a value
		meant bool // the program is one
	}{
		{"wait", f.Wait == forever, isTime == nil},
		{"label", f.Label == labelRank, program == labelRank || program == "host" || program == "both"},
		{"timing", f.Timing == timingTable, program == timingTable || program == timingJSON},
	} {
		if !flag.alone || !flag.meant {
			continue
		}
		if _, err := launch.LookUp(program); errors.Is(err, launch.ErrNotFound) {
			return fmt.Errorf("run: %w; did you mean --%s=%s?", err, flag.name, program)
		}
	}
	return nil
}
