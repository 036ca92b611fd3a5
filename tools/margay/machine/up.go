package machine

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"margay/cluster/fitness"
	"margay/cluster/ledger"
	"margay/cluster/machine"
	"margay/kernel/abi/node"
	"margay/kernel/abi/slot"
	"margay/nimble/object"
	"margay/tools/margay/command"
)

func (a commands) upCommand() *cobra.Command {
	var spec machine.Spec
	var program string
	var extensions []string
	var where hostFlags
	var metal metalFlags
	var users userFlags
	c := a.QuietFlag(&cobra.Command{
		Use:   "up",
		Short: "Make a machine and wait until its nodes are up",
		Long: `Make a machine of compute nodes and wait until all of them are up. It stays up until margay machine down.

A node has one system core and the application cores that --cores asks for. With --cores all, core 0 computes for
applications as well; margay machine cores changes that later. On the substrate qemu each node
is a virtual machine; on hosted it is a set of namespaces of this host, and its cores are shared with it. On hosts each
node is a set of namespaces of a host of a list, started by ssh or another launcher, by default with all cores that are
given to it there. Inside an allocation of Slurm or PBS the allocation has the list. On metal each node is a machine of its own,
with all its cores, that boots from the network behind --interface: machines of the machine file (--file), and those that margay
node approve names. Then the command returns when machines can boot. It needs root.

--fabric chooses how messages travel between nodes. tcp is one encrypted connection between two nodes: take it where the network
is reliable. udp is encrypted datagrams that are sent again until they arrive: take it where connections break, since a job then
loses messages only with a node kernel. With tcp-trusted and udp-trusted, ranks of different nodes send each other datagrams
that are not encrypted, which is many times faster: take them only on a wire that nothing but the nodes can reach. auto is
tcp-trusted on the substrates hosted and qemu, where the wire belongs to the machine, and tcp on hosts and metal. Files between nodes always travel over
encrypted connections.

--users and --admins let other users of this host in: they name the machine OWNER:MACHINE (margay run -m alice:lab). Users run jobs
and control these; of other jobs they see the number, the user, the nodes and the state. Administrators may do what you may with all jobs
and nodes. margay machine audit lists what was refused.

--listen lets users of other hosts in, by TLS and with a token (margay machine token, margay login).`,
		Example: `  margay machine up --nodes 4 --cores 2
  margay machine up -m test --substrate hosted --nodes 16 --cores 1
  margay machine up --substrate hosts --hosts 'cn[01-16]' --launcher "ssh -p 2222"
  margay machine up --substrate metal --interface eth1 --range 10.8.0.0/24 --file machine.yaml
  margay machine up -m lab --users bob,@students --admins carol --limit-cores 8
  margay machine up --substrate hosts    # in the shell of salloc, or in a script of sbatch
  margay machine up --extension ext/boot/minimum/minimum.o,cores=2 --extension ext/exit/account/account.o`,
		Args: command.NoArguments,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := command.Positive(c, "machine", "nodes", "memory", "boot-timeout", "dead-after", "substrate", "profile", "boot", "accel", "fabric", "listen"); err != nil {
				return err
			}
			if spec.Substrate == node.Hosted {
				if err := command.Without(c, "is for virtual nodes: hosted ones have the Linux of this host", "profile", "boot", "accel", "kernel", "qemu"); err != nil {
					return err
				}
			}
			if err := where.apply(c, &spec, a.Report); err != nil {
				return err
			}
			if err := metal.apply(c, &spec); err != nil {
				return err
			}
			ctx, stop := command.Interruptible(c.Context(), unix.SIGINT, unix.SIGTERM, unix.SIGHUP)
			defer stop()
			spec.Name = a.Machine
			if a.Remote() {
				return fmt.Errorf("machine up: %s is the name of a machine of another host (margay login): take another one, or margay logout -m %[1]s", a.Machine)
			}
			var err error
			if spec.Program, spec.JobInit, err = command.NodePrograms(program); err != nil {
				return err
			}
			if spec.Extensions, err = bootExtensions(extensions); err != nil {
				return err
			}
			if spec.Access, err = users.policy(c); err != nil {
				return err
			}
			return machine.Up(ctx, machine.UpOptions{
				Spec:     spec,
				Holder:   []string{"/proc/self/exe", "holder"},
				Told:     a.Report,
				Lost:     a.Loss,
				Session:  where.session,
				Progress: a.Progress(),
			})
		},
	})
	f := c.Flags()
	f.IntVar(&spec.Nodes, "nodes", 4, "how many nodes")
	spec.Cores = 2
	f.Var(coresFlag{&spec}, "cores", "application cores of each node besides core 0, or all: two, and core 0 as well")
	f.BoolVar(&spec.MessageCore, "message-core", false, "have the last core of each node handle messages and nothing else")
	f.BoolVar(&spec.Offload, "offload", false, "let extensions of jobs run on the network interfaces of nodes, not only the operator's: that takes work from the node kernels, and Linux may need much of a node's memory for a moment to verify one")
	f.StringVar(&spec.Substrate, "substrate", node.Virtual, "what nodes run on: qemu, hosted, hosts or metal")
	where.define(f)
	metal.define(f)
	users.define(f)
	f.StringVar(&spec.Listen, "listen", "", "accept users of other hosts, with a token, at this `HOST:PORT` of this host; :7118 is port 7118 of all its addresses (default: at none)")
	f.StringVar(&spec.Fabric, "fabric", machine.FabricAuto, "how messages travel between nodes: auto, tcp, tcp-trusted, udp or udp-trusted")
	f.IntVar(&spec.MemoryMiB, "memory", 512, "memory of each node, in MiB")
	f.IntVar(&spec.HistoryMiB, "history", ledger.DefaultSize>>20, "size of the history of its jobs (margay history), in MiB, 4 to 1024; 0: none is kept")
	f.DurationVar(&spec.Timing.Boot, "boot-timeout", 0, "how long a node may take to come up (default 2m0s)")
	f.DurationVar(&spec.Timing.Dead, "dead-after", 0, "silence after which a node is dead, or longer on a machine of many nodes (default 10s)")
	spec.Fitness = fitness.Default
	f.Var(fitnessFlag{&spec.Fitness}, "fitness", "what an idle node must keep to be given jobs: memory and space in /tmp, in MiB, and clock, the most that its clock may be wrong; or off")
	f.StringVar(&spec.Profile, "profile", "", "boot profile of nodes: isolated (least noise), ticking (the same, but for Linux's tick: idle nodes use less of their host) or sched (sched_ext can be used) (default: ticking for emulated nodes, else isolated)")
	f.StringVar(&spec.Boot, "boot", machine.BootKernel, "how virtual nodes boot: kernel (QEMU loads it, the fastest), or from their network card: bios, uefi (PXE) or http (UEFI HTTP boot)")
	f.StringVar(&spec.Accel, "accel", "tcg", "how virtual nodes are run: tcg (emulated), kvm, or auto (KVM if it proves itself)")
	f.StringVar(&spec.Kernel, "kernel", os.Getenv("KERNEL"), "kernel of virtual and metal nodes: generic (the distribution's, for real machines), a vmlinuz, or a folder with boot and lib/modules (environment: KERNEL)")
	f.StringVar(&spec.QEMU, "qemu", os.Getenv("QEMU"), "QEMU of virtual nodes: a path, or a name in PATH (environment: QEMU; default: the one installed, or a newer one)")
	f.StringArrayVar(&extensions, "extension", nil, "an extension that every node inserts when it boots, trusted, for all jobs: FILE or FILE,CONSTANT=VALUE,...; may be given again")
	f.StringVar(&program, "node-program", "", "the program that nodes run (default: nodekernel beside margay)")
	return c
}

// bootExtensions reads the extensions that nodes are to insert when they boot, given as
// FILE[,NAME=VALUE...], and sees to it that nodes know their slots.
func bootExtensions(given []string) ([]node.Extension, error) {
	var all []node.Extension
	for _, text := range given {
		path, constants, _ := strings.Cut(text, ",")
		x := node.Extension{Name: strings.TrimSuffix(filepath.Base(path), ".o"), Constants: make(map[string]uint64)}
		if constants != "" {
			settings, err := command.ParseSettings(strings.Split(constants, ","))
			if err != nil {
				return nil, fmt.Errorf("--extension %s: %w", text, err)
			}
			for _, s := range settings {
				x.Constants[s.Name] = s.Value
			}
		}
		file, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		specs, err := object.ELF(file)
		if err == nil && len(specs) != 1 {
			err = errors.New("it holds several programs, and a node inserts one")
		}
		if err == nil {
			_, err = slot.Find(slot.Name(specs[0].Slot()))
		}
		if err != nil {
			return nil, fmt.Errorf("--extension %s: %w", path, err)
		}
		if slices.ContainsFunc(all, func(other node.Extension) bool { return other.Name == x.Name }) {
			return nil, fmt.Errorf("--extension %s: there are two of the name %s", path, x.Name)
		}
		x.Object = file
		all = append(all, x)
	}
	return all, nil
}

// fitnessFlag is the value of --fitness.
type fitnessFlag struct{ limits *fitness.Limits }

func (f fitnessFlag) Set(text string) (err error) {
	*f.limits, err = fitness.Parse(text)
	return err
}

func (f fitnessFlag) String() string {
	if f.limits == nil {
		return ""
	}
	return f.limits.String()
}

func (f fitnessFlag) Type() string { return "limits" }

// coresFlag is the value of --cores: how many application cores, or all, which is core 0 beside the
// usual number.
type coresFlag struct{ spec *machine.Spec }

func (f coresFlag) Set(text string) error {
	if f.spec.AllCores = text == "all"; f.spec.AllCores {
		return nil
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		return errors.New("it is a number of cores, or all")
	}
	if n < 1 {
		return errors.New("it must be at least 1, or all")
	}
	f.spec.Cores = n
	return nil
}

func (f coresFlag) String() string {
	if f.spec == nil || f.spec.Cores == 0 {
		return ""
	}
	return strconv.Itoa(f.spec.Cores)
}

func (f coresFlag) Type() string { return "number|all" }
