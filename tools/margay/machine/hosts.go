package machine

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"margay/cluster/hosts"
	"margay/cluster/machine"
	"margay/kernel/abi/node"
	"margay/tools/margay/command"
)

// hostFlags are the flags of machine up that say where the nodes of the substrate hosts run.
type hostFlags struct {
	list, file, launcher, address string

	session bool // found by apply: the machine ends with the session of this process
}

func (w *hostFlags) define(f *pflag.FlagSet) {
	f.StringVar(&w.list, "hosts", "", "the hosts of the nodes: a list such as a,b or cn[01-16]")
	f.StringVar(&w.file, "hostfile", "", "a file with these hosts, one in each line")
	f.StringVar(&w.launcher, "launcher", "", "the command that starts a program on a host: it gets the host, the program and its arguments (default: srun in an allocation of Slurm, otherwise ssh)")
	f.StringVar(&w.address, "address", "", "address of this host, with or without a port, where the nodes of the hosts reach it (default: the one from which it reaches them)")
}

// apply completes the spec of a machine of hosts. On other substrates the flags are errors.
func (w *hostFlags) apply(c *cobra.Command, spec *machine.Spec, told func(format string, args ...any)) error {
	if spec.Substrate != node.Hosts {
		return command.Without(c, "is for --substrate "+node.Hosts, "hosts", "hostfile", "launcher", "address")
	}
	if err := command.Given(c, "hosts", "hostfile", "launcher", "address"); err != nil {
		return err
	}
	if err := command.Without(c, "is for virtual nodes: hosts have a Linux of their own", "profile", "boot", "accel", "kernel", "qemu"); err != nil {
		return err
	}
	if err := command.Without(c, "has no meaning here: each host has one node", "nodes"); err != nil {
		return err
	}
	if !c.Flags().Changed("cores") || spec.AllCores {
		spec.Cores = 0
	}
	if !c.Flags().Changed("memory") {
		spec.MemoryMiB = 0
	}
	spec.Address = w.address
	return w.find(c, spec, told)
}

// find finds the hosts and the launcher.
func (w *hostFlags) find(c *cobra.Command, spec *machine.Spec, told func(format string, args ...any)) (err error) {
	allocation, err := hosts.Process.Allocation()
	switch {
	case w.list != "" && w.file != "":
		return fmt.Errorf("%s: --hosts and --hostfile both list the hosts", command.Called(c))
	case w.list != "":
		if spec.Hosts, err = hosts.Parse(w.list); err != nil {
			return fmt.Errorf("%s: --hosts: %w", command.Called(c), err)
		}
	case w.file != "":
		text, err := os.ReadFile(w.file)
		if err != nil {
			return err
		}
		if spec.Hosts, err = hosts.ParseFile(string(text)); err != nil {
			return fmt.Errorf("%s: --hostfile %s: %w", command.Called(c), w.file, err)
		}
	case err != nil:
		return err
	case allocation == nil:
		return fmt.Errorf("%s: --substrate %s needs --hosts or --hostfile outside an allocation of Slurm or PBS", command.Called(c), node.Hosts)
	default:
		spec.Hosts = allocation.Hosts
		told("%s has %d hosts", allocation.Name, len(spec.Hosts))
	}
	// The launcher of a batch system ends nodes with the allocation. Another one must be ended, and
	// the script or the shell that the batch system has started ends with the allocation.
	w.session = allocation != nil && (w.launcher != "" || !allocation.Ends)
	if w.launcher != "" {
		spec.Launcher, err = hosts.ParseLauncher(w.launcher)
		return err
	}
	if allocation != nil {
		spec.Launcher = allocation.Launcher
	}
	return nil
}
