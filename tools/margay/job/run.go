package job

import (
	"context"
	"fmt"
	"os"
	"os/user"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
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
  margay run -n 8 --huge-pages -v ./app       # and say what each rank has used
  margay run --detach -n 8 ./app && margay ps`,
		Args: command.Arguments(1, -1),
		RunE: func(c *cobra.Command, args []string) error {
			if err := command.Positive(c, "ranks", "ppn", "per-core", "memory", "pids", "init-timeout"); err != nil {
				return err
			}
			if slices.Contains(f.With, "") {
				return fmt.Errorf("%s: --with: an empty name; it takes a file or folder along", command.Called(c))
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
	fs.DurationVar(&f.InitWait, "init-timeout", 0, "how long ranks that use messages wait for one that does not join (default 30s)")
	return c
}

// stdinModes are the values of --stdin.
var stdinModes = map[string]control.StdinMode{
	"first": control.StdinMode_STDIN_FIRST,
	"all":   control.StdinMode_STDIN_ALL,
	"none":  control.StdinMode_STDIN_NONE,
}

// Run runs a job on the machine of a, and returns its failure as an exit status.
func Run(ctx context.Context, a *command.App, f Flags, args []string) error {
	mode, ok := stdinModes[f.Stdin]
	if !ok {
		return fmt.Errorf("--stdin %s: it is first, all or none", f.Stdin)
	}
	socket, err := a.Socket()
	if err != nil {
		return err
	}
	env := os.Environ()
	if err := launch.CheckStrings(args, env); err != nil {
		return command.Failed(launch.ExitStatus(err), fmt.Errorf("run %s: %w", args[0], err))
	}
	files, err := launch.Collect(args[0], f.With)
	if err != nil {
		return command.Failed(launch.ExitStatus(err), err)
	}
	if files.Parallel != "" && !f.Force {
		return fmt.Errorf("run %s: it is linked with MPI or PMI (%s), which do not work here yet: each of the %d ranks would believe itself to be the only one and compute everything; --force runs it all the same",
			args[0], files.Parallel, f.Ranks)
	}
	spec, err := jobSpec(files)
	if err != nil {
		return err
	}
	spec.Ranks, spec.Stdin, spec.KeepGoing, spec.Detach = uint32(f.Ranks), mode, f.KeepGoing, f.Detach
	spec.Memory, spec.Pids, spec.InitTimeoutMs = int64(f.MemoryMiB)<<20, uint32(f.Pids), uint32(f.InitWait.Milliseconds())
	spec.HugePages = f.HugePages
	spec.PerNode, spec.PerCore = uint32(f.PerNode), uint32(f.PerCore)
	if f.Detach {
		spec.Stdin = control.StdinMode_STDIN_NONE
	}
	signals, stop := command.Catch(16, forwarded...)
	defer stop()
	o := launch.Options{
		Socket: socket, Spec: spec, Exec: &control.Exec{Argv: launch.Bytes(args), Env: launch.Bytes(env)}, Files: files, Label: f.Label, Stdin: command.Foreground(a.Stdin), Stdout: a.Stdout, Stderr: a.Stderr,
		Signals: signals, Status: &launch.Status{W: a.Stderr, Verbose: f.Verbose, Terminal: show.IsTerminal(a.Stderr)},
	}
	if f.Detach {
		o.Started = func(job uint32) error {
			if _, err := fmt.Fprintln(a.Stdout, job); err != nil {
				return fmt.Errorf("job %d is detached, but its number cannot be printed: %w", job, err)
			}
			return nil
		}
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

// jobSpec describes the program as it would run here.
func jobSpec(files *launch.Files) (*control.JobSpec, error) {
	dir, err := os.Getwd()
	if err != nil {
		return nil, fmt.Errorf("working directory: %w", err)
	}
	umask := unix.Umask(0)
	unix.Umask(umask)
	return &control.JobSpec{
		Path: []byte(files.Program), Dir: []byte(dir), Umask: uint32(umask),
		User: userName(), Uid: uint32(os.Getuid()), RamDisk: files.Size(), Arch: files.Arch,
	}, nil
}

// userName is the name of this user, fit for a line of /etc/passwd.
func userName() string {
	u, err := user.Current()
	if err != nil || u.Username == "" || strings.ContainsAny(u.Username, ":\n/") {
		return fmt.Sprintf("user%d", os.Getuid())
	}
	return u.Username
}
